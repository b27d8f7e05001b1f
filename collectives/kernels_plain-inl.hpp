// The reduction kernels without vector instructions by name: loops that a compiler can vectorise.
// Included by kernels_baseline.cpp where Highway has nothing for the architecture's baseline.
#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <type_traits>

#include "collectives/kernels.hpp"

namespace chorus::detail {
namespace {

/// Elements folded at a time: their lanes stay in the L1 cache.
constexpr std::size_t kBlock = 512;

/// Signed integers wrap as unsigned ones do; narrow unsigned ones must not be promoted to int.
template <class T>
using Wrapping = std::conditional_t<std::is_integral_v<T>, std::uint64_t, T>;

/// By an operation on bits; floats, which have none to combine, are never given here.
template <class Lane, class Bits>
void combine_bits(Lane* into, const Lane* with, std::size_t count, Bits bits) {
  if constexpr (std::is_integral_v<Lane>) {
    for (std::size_t i = 0; i < count; ++i) into[i] = static_cast<Lane>(bits(into[i], with[i]));
  }
}

template <class Lane>
void combine(Lane* into, const Lane* with, std::size_t count, ReduceOp op) {
  using Wide = Wrapping<Lane>;
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg:
      for (std::size_t i = 0; i < count; ++i) {
        into[i] = static_cast<Lane>(static_cast<Wide>(into[i]) + static_cast<Wide>(with[i]));
      }
      return;
    case ReduceOp::prod:
      for (std::size_t i = 0; i < count; ++i) {
        into[i] = static_cast<Lane>(static_cast<Wide>(into[i]) * static_cast<Wide>(with[i]));
      }
      return;
    case ReduceOp::min:  // x != x: a NaN stays
      for (std::size_t i = 0; i < count; ++i) {
        into[i] = into[i] < with[i] || into[i] != into[i] ? into[i] : with[i];
      }
      return;
    case ReduceOp::max:
      for (std::size_t i = 0; i < count; ++i) {
        into[i] = with[i] < into[i] || into[i] != into[i] ? into[i] : with[i];
      }
      return;
    case ReduceOp::band:
      return combine_bits(into, with, count, std::bit_and<>());
    case ReduceOp::bor:
      return combine_bits(into, with, count, std::bit_or<>());
    case ReduceOp::bxor:
      return combine_bits(into, with, count, std::bit_xor<>());
  }
}

template <class Stored, class Lane>
void widen(Lane* lanes, const std::uint8_t* from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    Stored stored;
    std::memcpy(static_cast<void*>(&stored), from + i * sizeof(Stored), sizeof(Stored));
    lanes[i] = static_cast<Lane>(stored);
  }
}

template <class Stored, class Lane>
void narrow(std::uint8_t* to, const Lane* lanes, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto stored = static_cast<Stored>(lanes[i]);
    std::memcpy(to + i * sizeof(Stored), static_cast<const void*>(&stored), sizeof(Stored));
  }
}

template <class Stored, class Lane = Stored>
void fold_as(const FoldArguments& a) {
  Lane folded[kBlock];
  Lane next[kBlock];
  const std::size_t count = a.size_bytes / sizeof(Stored);
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t block = std::min(kBlock, count - begin);
    const std::size_t at = begin * sizeof(Stored);
    widen<Stored>(folded, a.sources[0] + at, block);
    for (std::size_t source = 1; source < a.num_sources; ++source) {
      widen<Stored>(next, a.sources[source] + at, block);
      combine(folded, next, block, a.op);
    }
    if constexpr (!std::is_integral_v<Lane>) {
      const auto divisor = static_cast<Lane>(a.divisor);
      for (std::size_t i = 0; i < block && divisor != 1; ++i) folded[i] /= divisor;
    }
    narrow<Stored>(a.out + at, folded, block);
  }
}

/// Integers towards zero, kept within their type; NaN becomes 0. Narrow floats multiply in float.
template <class Stored>
Stored scaled(Stored value, double factor) {
  if constexpr (std::is_integral_v<Stored>) {
    using Limits = std::numeric_limits<Stored>;
    const double product = static_cast<double>(value) * factor;
    // 2^digits: the first integer beyond, which is exact where the largest one is not.
    constexpr Stored kHalf = Limits::max() / 2 + 1;
    if (product >= 2.0 * static_cast<double>(kHalf)) return Limits::max();
    if (product <= static_cast<double>(Limits::min())) return Limits::min();
    return product == product ? static_cast<Stored>(product) : Stored{0};
  } else if constexpr (std::is_floating_point_v<Stored>) {
    return static_cast<Stored>(static_cast<double>(value) * factor);
  } else {
    return Stored(static_cast<float>(value) * static_cast<float>(factor));
  }
}

template <class Stored>
void scale_as(const ScaleArguments& a) {
  for (std::size_t at = 0; at < a.size_bytes; at += sizeof(Stored)) {
    Stored value;
    std::memcpy(static_cast<void*>(&value), a.in + at, sizeof(Stored));
    value = scaled(value, a.factor);
    std::memcpy(a.out + at, static_cast<const void*>(&value), sizeof(Stored));
  }
}

FoldFunction fold_for(DataType type, ReduceOp /*op*/) {
  switch (type) {
    case DataType::int8:
      return fold_as<std::int8_t>;
    case DataType::uint8:
      return fold_as<std::uint8_t>;
    case DataType::int16:
      return fold_as<std::int16_t>;
    case DataType::uint16:
      return fold_as<std::uint16_t>;
    case DataType::int32:
      return fold_as<std::int32_t>;
    case DataType::uint32:
      return fold_as<std::uint32_t>;
    case DataType::int64:
      return fold_as<std::int64_t>;
    case DataType::uint64:
      return fold_as<std::uint64_t>;
    case DataType::float16:
      return fold_as<Float16, float>;
    case DataType::bfloat16:
      return fold_as<BFloat16, float>;
    case DataType::float32:
      return fold_as<float>;
    case DataType::float64:
      return fold_as<double>;
    case DataType::float8_e4m3:
      return fold_as<Float8E4M3, float>;
    case DataType::float8_e5m2:
      return fold_as<Float8E5M2, float>;
  }
  return nullptr;
}

void scale_type(const ScaleArguments& a) {
  switch (a.type) {
    case DataType::int8:
      return scale_as<std::int8_t>(a);
    case DataType::uint8:
      return scale_as<std::uint8_t>(a);
    case DataType::int16:
      return scale_as<std::int16_t>(a);
    case DataType::uint16:
      return scale_as<std::uint16_t>(a);
    case DataType::int32:
      return scale_as<std::int32_t>(a);
    case DataType::uint32:
      return scale_as<std::uint32_t>(a);
    case DataType::int64:
      return scale_as<std::int64_t>(a);
    case DataType::uint64:
      return scale_as<std::uint64_t>(a);
    case DataType::float16:
      return scale_as<Float16>(a);
    case DataType::bfloat16:
      return scale_as<BFloat16>(a);
    case DataType::float32:
      return scale_as<float>(a);
    case DataType::float64:
      return scale_as<double>(a);
    case DataType::float8_e4m3:
      return scale_as<Float8E4M3>(a);
    case DataType::float8_e5m2:
      return scale_as<Float8E5M2>(a);
  }
}

}  // namespace

const Kernels kernels_baseline{InstructionSet::baseline, fold_for, scale_type};

}  // namespace chorus::detail
