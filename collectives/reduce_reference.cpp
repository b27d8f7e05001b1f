// The reductions once more, one element after the other: what the tests compare with.
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "collectives/reduce.hpp"

namespace chorus {
namespace {

/// Floats in double, rounded after each operation. That is what float arithmetic gives, since
/// double has more than twice the bits.
template <class T>
T combine(T a, T b, ReduceOp op) {
  if constexpr (std::is_integral_v<T>) {
    using Wide = std::uint64_t;
    switch (op) {
      case ReduceOp::prod:
        return static_cast<T>(static_cast<Wide>(a) * static_cast<Wide>(b));
      case ReduceOp::min:
        return a < b ? a : b;
      case ReduceOp::max:
        return b < a ? a : b;
      case ReduceOp::band:
        return static_cast<T>(a & b);
      case ReduceOp::bor:
        return static_cast<T>(a | b);
      case ReduceOp::bxor:
        return static_cast<T>(a ^ b);
      default:
        return static_cast<T>(static_cast<Wide>(a) + static_cast<Wide>(b));
    }
  } else {
    switch (op) {
      case ReduceOp::prod:
        return static_cast<T>(static_cast<double>(a) * static_cast<double>(b));
      case ReduceOp::min:
        return a < b || a != a ? a : b;
      case ReduceOp::max:
        return b < a || a != a ? a : b;
      default:
        return static_cast<T>(static_cast<double>(a) + static_cast<double>(b));
    }
  }
}

template <class T>
T divide(T value, int divisor) {
  if constexpr (std::is_integral_v<T>) {
    using Wide = std::conditional_t<std::is_unsigned_v<T>, std::uint64_t, std::int64_t>;
    return static_cast<T>(static_cast<Wide>(value) / static_cast<Wide>(divisor));
  } else {
    return static_cast<T>(static_cast<double>(value) / divisor);
  }
}

/// Stored is the element in memory, Lane what it is folded in.
template <class Stored, class Lane = Stored>
void fold_as(void* out, std::span<const void* const> sources, std::size_t count, ReduceOp op,
             int divisor) {
  const auto read = [](const void* from, std::size_t i) {
    Stored stored;
    std::memcpy(static_cast<void*>(&stored), static_cast<const char*>(from) + i * sizeof(Stored),
                sizeof(Stored));
    return stored;
  };
  for (std::size_t i = 0; i < count; ++i) {
    Stored result = read(sources[0], i);
    if (sources.size() > 1 || divisor != 1) {
      Lane folded = static_cast<Lane>(result);
      for (const void* source : sources.subspan(1)) {
        folded = combine<Lane>(folded, static_cast<Lane>(read(source, i)), op);
      }
      if (divisor != 1) folded = divide(folded, divisor);
      result = static_cast<Stored>(folded);
    }
    std::memcpy(static_cast<char*>(out) + i * sizeof(Stored), static_cast<const void*>(&result),
                sizeof(Stored));
  }
}

}  // namespace

void fold_reference(void* out, std::span<const void* const> sources, std::size_t count,
                    DataType type, ReduceOp op, int divisor) {
  switch (type) {
    case DataType::int8:
      return fold_as<std::int8_t>(out, sources, count, op, divisor);
    case DataType::uint8:
      return fold_as<std::uint8_t>(out, sources, count, op, divisor);
    case DataType::int16:
      return fold_as<std::int16_t>(out, sources, count, op, divisor);
    case DataType::uint16:
      return fold_as<std::uint16_t>(out, sources, count, op, divisor);
    case DataType::int32:
      return fold_as<std::int32_t>(out, sources, count, op, divisor);
    case DataType::uint32:
      return fold_as<std::uint32_t>(out, sources, count, op, divisor);
    case DataType::int64:
      return fold_as<std::int64_t>(out, sources, count, op, divisor);
    case DataType::uint64:
      return fold_as<std::uint64_t>(out, sources, count, op, divisor);
    case DataType::float16:
      return fold_as<Float16, float>(out, sources, count, op, divisor);
    case DataType::bfloat16:
      return fold_as<BFloat16, float>(out, sources, count, op, divisor);
    case DataType::float32:
      return fold_as<float>(out, sources, count, op, divisor);
    case DataType::float64:
      return fold_as<double>(out, sources, count, op, divisor);
    case DataType::float8_e4m3:
      return fold_as<Float8E4M3, float>(out, sources, count, op, divisor);
    case DataType::float8_e5m2:
      return fold_as<Float8E5M2, float>(out, sources, count, op, divisor);
  }
}

}  // namespace chorus
