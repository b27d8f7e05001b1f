// Arithmetic of every DataType × ReduceOp on 8-byte words of elements; host and device give the
// same bits (NaN payloads apart), which are those of collectives/reduce.hpp.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#if !defined(__CUDACC__)
#include <cstring>
#endif

#include "chorus/types.hpp"
#include "device/portable.hpp"

namespace chorus::device {

template <class To, class From>
CHORUS_INLINE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
#if defined(__CUDA_ARCH__)
  memcpy(&to, &from, sizeof to);
#else
  __builtin_memcpy(&to, &from, sizeof to);
#endif
  return to;
}

/// A float of few bits, by its fields. The twin of src/base/types.cpp.
/// kTop: magnitude of the first encoding that is no finite value. kLargest: what finite values
/// beyond become. kInfinite, kNan: the encodings of those.
template <int kExponent, int kMantissa, std::uint32_t kTop, std::uint32_t kLargest,
          std::uint32_t kInfinite, std::uint32_t kNan>
struct SmallFloat {
  static constexpr int kBias = (1 << (kExponent - 1)) - 1;
  static constexpr std::uint32_t kRebias = 127 - kBias;
  static constexpr int kShift = 23 - kMantissa;
  static constexpr int kSignAt = kExponent + kMantissa;

  CHORUS_INLINE static float power_of_two(int exponent) {
    return bits_as<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
  }
  CHORUS_INLINE static float widen(std::uint32_t bits) {
    const std::uint32_t magnitude = bits & ((1U << kSignAt) - 1);
    const std::uint32_t sign = (bits >> kSignAt & 1U) << 31;
    std::uint32_t value;
    if (magnitude >= kTop) {
      value = magnitude == kInfinite ? 0x7F80'0000U : 0x7FC0'0000U;
    } else if (magnitude >> kMantissa == 0) {
      value = bits_as<std::uint32_t>(static_cast<float>(magnitude) *
                                     power_of_two(1 - kBias - kMantissa));
    } else {
      value = (magnitude << kShift) + (kRebias << 23);
    }
    return bits_as<float>(value | sign);
  }
  CHORUS_INLINE static std::uint32_t narrow(float value) {
    const std::uint32_t bits = bits_as<std::uint32_t>(value);
    const std::uint32_t magnitude = bits & 0x7FFF'FFFFU;
    const std::uint32_t sign = bits >> 31 << kSignAt;
    if (magnitude > 0x7F80'0000U) return kNan | sign;
    if (magnitude == 0x7F80'0000U) return kInfinite | sign;
    std::uint32_t small;
    if (magnitude < (kRebias + 1) << 23) {
      // Below the smallest normal number: adding 2^23 quanta makes the addition round to quanta.
      const float quanta = power_of_two(1 - kBias - kMantissa + 23);
      small = bits_as<std::uint32_t>(bits_as<float>(magnitude) + quanta) -
              bits_as<std::uint32_t>(quanta);
    } else {
      const std::uint32_t odd = magnitude >> kShift & 1U;
      small = ((magnitude + (1U << (kShift - 1)) - 1U + odd) >> kShift) - (kRebias << kMantissa);
    }
    return smaller(small, kLargest) | sign;
  }
};
using Half = SmallFloat<5, 10, 0x7C00, 0x7C00, 0x7C00, 0x7E00>;
using E4M3 = SmallFloat<4, 3, 0x7F, 0x7E, 0x7E, 0x7F>;
using E5M2 = SmallFloat<5, 2, 0x7C, 0x7B, 0x7C, 0x7E>;

/// How one type is stored (Bits) and computed with (Lane).
template <DataType kType>
struct Number;

template <class T>
struct PlainNumber {
  using Bits = T;
  using Lane = T;
  CHORUS_INLINE static Lane widen(Bits bits) { return bits; }
  CHORUS_INLINE static Bits narrow(Lane lane) { return lane; }
};
template <>
struct Number<DataType::int8> : PlainNumber<std::int8_t> {};
template <>
struct Number<DataType::uint8> : PlainNumber<std::uint8_t> {};
template <>
struct Number<DataType::int16> : PlainNumber<std::int16_t> {};
template <>
struct Number<DataType::uint16> : PlainNumber<std::uint16_t> {};
template <>
struct Number<DataType::int32> : PlainNumber<std::int32_t> {};
template <>
struct Number<DataType::uint32> : PlainNumber<std::uint32_t> {};
template <>
struct Number<DataType::int64> : PlainNumber<std::int64_t> {};
template <>
struct Number<DataType::uint64> : PlainNumber<std::uint64_t> {};
template <>
struct Number<DataType::float32> : PlainNumber<float> {};
template <>
struct Number<DataType::float64> : PlainNumber<double> {};

template <>
struct Number<DataType::float16> {
  using Bits = std::uint16_t;
  using Lane = float;
#if defined(__CUDA_ARCH__)
  __device__ __forceinline__ static Lane widen(Bits bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
  }
  __device__ __forceinline__ static Bits narrow(Lane value) {
    Bits bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
  }
#else
  static Lane widen(Bits bits) { return Half::widen(bits); }
  static Bits narrow(Lane value) { return static_cast<Bits>(Half::narrow(value)); }
#endif
};
template <>
struct Number<DataType::bfloat16> {
  using Bits = std::uint16_t;
  using Lane = float;
  CHORUS_INLINE static Lane widen(Bits bits) {
    return bits_as<float>(static_cast<std::uint32_t>(bits) << 16);
  }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  __device__ __forceinline__ static Bits narrow(Lane value) {
    Bits bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
  }
#else
  CHORUS_INLINE static Bits narrow(Lane value) {
    const auto bits = bits_as<std::uint32_t>(value);
    if ((bits & 0x7FFF'FFFFU) > 0x7F80'0000U) return static_cast<Bits>(bits >> 16 | 0x40U);
    return static_cast<Bits>((bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16);
  }
#endif
};
template <>
struct Number<DataType::float8_e4m3> {
  using Bits = std::uint8_t;
  using Lane = float;
  CHORUS_INLINE static Lane widen(Bits bits) { return E4M3::widen(bits); }
  CHORUS_INLINE static Bits narrow(Lane value) { return static_cast<Bits>(E4M3::narrow(value)); }
};
template <>
struct Number<DataType::float8_e5m2> {
  using Bits = std::uint8_t;
  using Lane = float;
  CHORUS_INLINE static Lane widen(Bits bits) { return E5M2::widen(bits); }
  CHORUS_INLINE static Bits narrow(Lane value) { return static_cast<Bits>(E5M2::narrow(value)); }
};

/// Integers wrap; min and max give NaN if either is NaN. avg adds; divided() completes it.
template <ReduceOp kOp, class Lane>
CHORUS_INLINE Lane combined(Lane a, Lane b) {
  if constexpr (kOp == ReduceOp::min) {
    return a < b || a != a ? a : b;
  } else if constexpr (kOp == ReduceOp::max) {
    return b < a || a != a ? a : b;
  } else if constexpr (std::is_integral_v<Lane>) {
    // Signed overflow is undefined; narrow unsigned types must not be promoted to int. The low bits
    // are the result whatever stands above them. NOLINTBEGIN(bugprone-signed-char-misuse)
    const auto x = static_cast<std::uint64_t>(a);
    const auto y = static_cast<std::uint64_t>(b);
    // NOLINTEND(bugprone-signed-char-misuse)
    return static_cast<Lane>(kOp == ReduceOp::prod ? x * y : x + y);
  } else {
    return kOp == ReduceOp::prod ? a * b : a + b;
  }
}

template <class Lane>
CHORUS_INLINE Lane divided(Lane value, std::uint32_t divisor) {
  if constexpr (std::is_integral_v<Lane> && std::is_signed_v<Lane>) {
    return static_cast<Lane>(static_cast<std::int64_t>(value) / static_cast<std::int64_t>(divisor));
  } else if constexpr (std::is_integral_v<Lane>) {
    return static_cast<Lane>(static_cast<std::uint64_t>(value) / divisor);
  } else {
    return value / static_cast<Lane>(divisor);
  }
}

/// As chorus::scale(): integers truncate and saturate, NaN becomes 0; narrow floats multiply in
/// float.
template <class N>
CHORUS_INLINE typename N::Lane scaled(typename N::Lane value, double factor) {
  using Lane = typename N::Lane;
  if constexpr (std::is_integral_v<Lane>) {
    constexpr Lane kMax =
        static_cast<Lane>(std::is_signed_v<Lane> ? (std::uint64_t{1} << (8 * sizeof(Lane) - 1)) - 1
                                                 : ~std::uint64_t{0} >> (64 - 8 * sizeof(Lane)));
    constexpr Lane kMin = static_cast<Lane>(std::is_signed_v<Lane> ? -kMax - 1 : 0);
    const double product = static_cast<double>(value) * factor;
    // 2^digits: the first integer beyond, which is exact where the largest one is not.
    if (product >= 2.0 * static_cast<double>(static_cast<Lane>(kMax / 2 + 1))) return kMax;
    if (product <= static_cast<double>(kMin)) return kMin;
    return product == product ? static_cast<Lane>(product) : Lane{0};
  } else if constexpr (sizeof(typename N::Bits) == sizeof(Lane)) {
    return static_cast<Lane>(static_cast<double>(value) * factor);
  } else {
    return N::widen(N::narrow(value * static_cast<float>(factor)));
  }
}

/// The elements of one 8-byte word.
template <DataType kType>
struct Lanes {
  using N = Number<kType>;
  using Bits = typename N::Bits;
  static constexpr int kCount = 8 / sizeof(Bits);
  using Unsigned = std::conditional_t<
      sizeof(Bits) == 1, std::uint8_t,
      std::conditional_t<sizeof(Bits) == 2, std::uint16_t,
                         std::conditional_t<sizeof(Bits) == 4, std::uint32_t, std::uint64_t>>>;

  typename N::Lane lane[kCount];

  CHORUS_INLINE static Bits element(std::uint64_t word, int i) {
    return bits_as<Bits>(static_cast<Unsigned>(word >> (i * 8 * static_cast<int>(sizeof(Bits)))));
  }
  CHORUS_INLINE void unpack(std::uint64_t word) {
    CHORUS_UNROLL
    for (int i = 0; i < kCount; ++i) lane[i] = N::widen(element(word, i));
  }
  template <ReduceOp kOp>
  CHORUS_INLINE void combine(std::uint64_t word) {
    CHORUS_UNROLL
    for (int i = 0; i < kCount; ++i) {
      lane[i] = combined<kOp>(lane[i], static_cast<typename N::Lane>(N::widen(element(word, i))));
    }
  }
  CHORUS_INLINE void divide(std::uint32_t divisor) {
    CHORUS_UNROLL
    for (int i = 0; i < kCount; ++i) lane[i] = divided(lane[i], divisor);
  }
  [[nodiscard]] CHORUS_INLINE std::uint64_t packed() const {
    std::uint64_t word = 0;
    CHORUS_UNROLL
    for (int i = 0; i < kCount; ++i) {
      word |= static_cast<std::uint64_t>(bits_as<Unsigned>(N::narrow(lane[i])))
              << (i * 8 * static_cast<int>(sizeof(Bits)));
    }
    return word;
  }
};

/// round(element · factor) for each element of a word.
template <DataType kType>
CHORUS_INLINE std::uint64_t scaled_word(std::uint64_t word, double factor) {
  Lanes<kType> lanes;
  lanes.unpack(word);
  for (int i = 0; i < Lanes<kType>::kCount; ++i) {
    lanes.lane[i] = scaled<Number<kType>>(lanes.lane[i], factor);
  }
  return lanes.packed();
}

/// The factor of a scaled sum where it lies in memory.
template <DataType kType>
CHORUS_INLINE double factor_at(std::uint64_t address) {
  using N = Number<kType>;
  const auto bits = *reinterpret_cast<const typename N::Bits*>(address);
  return static_cast<double>(N::widen(bits));
}

}  // namespace chorus::device
