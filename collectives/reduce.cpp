#include "collectives/reduce.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#if defined(CHORUS_X86_KERNELS)
#include <cpuid.h>
#endif

#include "base/check.hpp"
#include "base/copy.hpp"
#include "collectives/kernels.hpp"

namespace chorus {
namespace detail {
namespace {

#if defined(CHORUS_X86_KERNELS)
/// What the compiler was told about each kernels_*.cpp. __builtin_cpu_supports() asks the operating
/// system too whether it saves the wider registers; clang 14 does not know F16C by name.
bool has_avx2() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  constexpr unsigned kF16c = 1U << 29;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
         __builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul") &&
         __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & kF16c) != 0;
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}
#endif

template <class T>
void divide_each(void* data, std::size_t count, int divisor) {
  auto* bytes = static_cast<std::uint8_t*>(data);
  for (std::size_t i = 0; i < count; ++i, bytes += sizeof(T)) {
    T value;
    std::memcpy(&value, bytes, sizeof(T));
    if constexpr (sizeof(T) < sizeof(std::int64_t)) {
      // Exact: a quotient of 32-bit numbers is never rounded up to the next integer.
      value = static_cast<T>(static_cast<double>(value) / divisor);
    } else {
      value = value / static_cast<T>(divisor);
    }
    std::memcpy(bytes, &value, sizeof(T));
  }
}

/// False for types that are no integers.
bool divide_integers(void* data, std::size_t count, DataType type, int divisor) {
  switch (type) {
    case DataType::int8:
      divide_each<std::int8_t>(data, count, divisor);
      return true;
    case DataType::uint8:
      divide_each<std::uint8_t>(data, count, divisor);
      return true;
    case DataType::int16:
      divide_each<std::int16_t>(data, count, divisor);
      return true;
    case DataType::uint16:
      divide_each<std::uint16_t>(data, count, divisor);
      return true;
    case DataType::int32:
      divide_each<std::int32_t>(data, count, divisor);
      return true;
    case DataType::uint32:
      divide_each<std::uint32_t>(data, count, divisor);
      return true;
    case DataType::int64:
      divide_each<std::int64_t>(data, count, divisor);
      return true;
    case DataType::uint64:
      divide_each<std::uint64_t>(data, count, divisor);
      return true;
    default:
      return false;
  }
}

/// Chosen at the first call.
const Kernels& best_kernels() {
  static const Kernels& best = [&]() -> const Kernels& {
    for (const InstructionSet set : {InstructionSet::avx512, InstructionSet::avx2}) {
      if (const Kernels* kernels = kernels_for(set)) return *kernels;
    }
    return kernels_baseline;
  }();
  return best;
}

}  // namespace

const Kernels* kernels_for(InstructionSet set) {
  if (set == InstructionSet::baseline) return &kernels_baseline;
#if defined(CHORUS_X86_KERNELS)
  if (set == InstructionSet::avx2 && has_avx2()) return &kernels_avx2;
  if (set == InstructionSet::avx512 && has_avx512()) return &kernels_avx512;
#endif
  return nullptr;
}

void fold_with(const Kernels& kernels, void* out, const void* const* sources,
               std::size_t num_sources, std::size_t count, DataType type, ReduceOp op,
               int divisor) {
  CHORUS_CHECK(num_sources > 0, "a fold needs a source");
  CHORUS_CHECK(divisor > 0, "a fold divides by the world size");
  if (count == 0) return;
  const std::size_t size_bytes = count * size_of(type);
  if (num_sources == 1 && divisor == 1) {
    if (out != sources[0]) copy_bytes(out, sources[0], size_bytes);
    return;
  }
  // void and uint8_t pointers have one representation; the array is read as such.
  kernels.fold_for(type, op)({static_cast<std::uint8_t*>(out),
                              reinterpret_cast<const std::uint8_t* const*>(sources), num_sources,
                              size_bytes, type, op, static_cast<double>(divisor)});
  if (divisor != 1) divide_integers(out, count, type, divisor);
}

void scale_with(const Kernels& kernels, void* out, const void* in, std::size_t count, DataType type,
                double factor) {
  if (count == 0) return;
  const std::size_t size_bytes = count * size_of(type);
  if (factor == 1.0) {
    if (out != in) copy_bytes(out, in, size_bytes);
    return;
  }
  kernels.scale({static_cast<std::uint8_t*>(out), static_cast<const std::uint8_t*>(in), size_bytes,
                 type, factor});
}

}  // namespace detail

void fold(void* out, std::span<const void* const> sources, std::size_t count, DataType type,
          ReduceOp op, int divisor) {
  detail::fold_with(detail::best_kernels(), out, sources.data(), sources.size(), count, type, op,
                    divisor);
}

Fold::Fold(DataType type, ReduceOp op, int divisor)
    : function_(detail::best_kernels().fold_for(type, op)),
      type_(type),
      op_(op),
      divisor_(divisor) {}

void Fold::operator()(void* out, std::span<const void* const> sources, std::size_t count) const {
  if (sources.size() == 1 || divisor_ != 1 || count == 0) {
    return fold(out, sources, count, type_, op_, divisor_);
  }
  function_({static_cast<std::uint8_t*>(out),
             reinterpret_cast<const std::uint8_t* const*>(sources.data()), sources.size(),
             count * size_of(type_), type_, op_, 1});
}

void scale(void* out, const void* in, std::size_t count, DataType type, double factor) {
  detail::scale_with(detail::best_kernels(), out, in, count, type, factor);
}

std::string_view reduce_instruction_set() {
  constexpr std::array<std::string_view, 3> kNames{"baseline", "avx2", "avx512"};
  return kNames[static_cast<std::size_t>(detail::best_kernels().set)];
}

}  // namespace chorus
