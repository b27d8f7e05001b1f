// Reduction kernels of the host, vectorised with run-time dispatch.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "chorus/types.hpp"

namespace chorus {
namespace detail {
struct FoldArguments;
}

/// out[i] = (((s₀[i] ⊕ s₁[i]) ⊕ s₂[i]) …) / divisor for i in [0, count), elements of `type`.
///
///   sources  at least 1 pointer, each [count], any alignment; may equal `out`
///   out      [count]; may equal one source, must not overlap any source otherwise
///   divisor  1 or, to complete ReduceOp::avg, the world size
///
/// `op` avg adds; it applies() to `type`. Types narrower than float32 fold in float32 and round
/// once. One source copies (and divides).
void fold(void* out, std::span<const void* const> sources, std::size_t count, DataType type,
          ReduceOp op, int divisor = 1);

/// fold() for calls of a few elements: what follows from type, operation and divisor is decided
/// once.
class Fold {
 public:
  Fold() = default;
  Fold(DataType type, ReduceOp op, int divisor);
  void operator()(void* out, std::span<const void* const> sources, std::size_t count) const;

 private:
  void (*function_)(const detail::FoldArguments&) = nullptr;
  DataType type_ = DataType::uint8;
  ReduceOp op_ = ReduceOp::sum;
  int divisor_ = 1;
};

/// Where a result goes, at least 1 place; none may overlap another.
struct Outs {
  std::span<void* const> cached;    ///< through the caches: somebody reads it soon
  std::span<void* const> streamed;  ///< past them: it is too large to be found there
};

/// The same into several places, each [count]; each may equal one of the sources.
void fold(const Outs& outs, std::span<const void* const> sources, std::size_t count, DataType type,
          ReduceOp op, int divisor);

/// Copies, past the caches if `streams`. The two must not overlap unless they are equal.
void copy(void* out, const void* in, std::size_t size_bytes, bool streams);

/// out[i] = round(in[i] · factor), any alignment; in may equal out.
///
/// The product is taken in double (types narrower than float32: in float32, by the factor rounded
/// to it). Integers truncate towards zero and saturate. A factor of 1 copies.
void scale(void* out, const void* in, std::size_t count, DataType type, double factor);

/// The instruction set in use: "avx512", "avx2", "baseline".
[[nodiscard]] std::string_view reduce_instruction_set();

/// The same in plain C++ with a double (or exact integer) accumulator where that gives the same
/// result: the reference of the tests.
void fold_reference(void* out, std::span<const void* const> sources, std::size_t count,
                    DataType type, ReduceOp op, int divisor = 1);

}  // namespace chorus
