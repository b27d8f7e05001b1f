// The reduction kernels as compiled for one instruction set. Internal to reduce.cpp and its tests.
#pragma once

#include <cstddef>
#include <cstdint>

#include "chorus/types.hpp"

namespace chorus::detail {

enum class InstructionSet : std::uint8_t { baseline, avx2, avx512 };

/// One fold or scale. Sizes are in bytes so that no inline function of another header is compiled
/// for an instruction set that the machine may lack (see kernels-inl.hpp).
struct FoldArguments {
  std::uint8_t* out;
  const std::uint8_t* const* sources;
  std::size_t num_sources;  ///< ≥ 1
  std::size_t size_bytes;
  DataType type;
  ReduceOp op;
  double divisor;  ///< floats are divided by it; integers are not (see divide_integers())
};
struct ScaleArguments {
  std::uint8_t* out;
  const std::uint8_t* in;
  std::size_t size_bytes;
  DataType type;
  double factor;
};
using FoldFunction = void (*)(const FoldArguments&);
struct Kernels {
  InstructionSet set;
  FoldFunction (*fold_for)(DataType type, ReduceOp op);
  void (*scale)(const ScaleArguments&);
};

extern const Kernels kernels_baseline;
extern const Kernels kernels_avx2;
extern const Kernels kernels_avx512;

/// Null where this machine or this build lacks it.
[[nodiscard]] const Kernels* kernels_for(InstructionSet set);

/// chorus::fold() and chorus::scale() with chosen kernels.
void fold_with(const Kernels& kernels, void* out, const void* const* sources,
               std::size_t num_sources, std::size_t count, DataType type, ReduceOp op, int divisor);
void scale_with(const Kernels& kernels, void* out, const void* in, std::size_t count, DataType type,
                double factor);

}  // namespace chorus::detail
