// Conversions between types, rounded and saturated as PTX says.
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "execution.hpp"
#include "values.hpp"

namespace ptx {
namespace {

double half_value(std::uint64_t bits) {
  const int exponent = static_cast<int>(bits >> 10 & 31);
  const auto fraction = static_cast<double>(bits & 1023);
  double value = 0;
  if (exponent == 31) {
    value = fraction != 0 ? std::nan("") : HUGE_VAL;
  } else if (exponent == 0) {
    value = std::ldexp(fraction, -24);
  } else {
    value = std::ldexp(1024 + fraction, exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

/// To the nearest half, ties to even.
std::uint64_t half_of(double value) {
  const std::uint64_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return 0x7fff;
  const double size = std::fabs(value);
  if (size >= 65520) return sign | 0x7c00;
  const int exponent = size < std::ldexp(1.0, -14) ? -14 : std::ilogb(size);
  const auto steps = static_cast<std::uint64_t>(std::nearbyint(std::ldexp(size, 10 - exponent)));
  // 1024 steps and more are a normal number; rounding up into the next exponent carries by itself.
  return sign | ((static_cast<std::uint64_t>(exponent + 14) << 10) + steps);
}

double widened(std::uint64_t bits, Type type) {
  switch (type) {
    case Type::f16:
      return half_value(bits);
    case Type::bf16:
      return static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16));
    case Type::f32:
      return static_cast<double>(from_bits<float>(bits));
    default:
      return from_bits<double>(bits);
  }
}

std::uint64_t bfloat_of(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return 0x7fff;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

/// A number as a float type; once rounded, to the nearest even.
std::uint64_t narrowed(double value, Type to) {
  if (to == Type::f64) return to_bits(value);
  const auto single = static_cast<float>(value);
  if (to == Type::f32) return to_bits(single);
  if (to == Type::bf16) return bfloat_of(single);
  return half_of(value);
}

double rounded(double value, Round how) {
  switch (how) {
    case Round::zero:
      return std::trunc(value);
    case Round::down:
      return std::floor(value);
    case Round::up:
      return std::ceil(value);
    default:
      return std::nearbyint(value);
  }
}

/// Out of range: the nearest integer that there is.
template <class T>
std::uint64_t saturated(double value) {
  if (std::isnan(value)) return 0;
  const double least =
      std::is_signed_v<T> ? -std::ldexp(1.0, static_cast<int>(8 * sizeof(T)) - 1) : 0.0;
  const double above =
      std::ldexp(1.0, static_cast<int>(8 * sizeof(T)) - (std::is_signed_v<T> ? 1 : 0));
  if (value >= above) return to_bits(std::numeric_limits<T>::max());
  if (value < least) return to_bits(std::numeric_limits<T>::min());
  return to_bits(static_cast<T>(value));
}

}  // namespace

void Execution::convert(const Instruction& one) const {
  const Lanes& from = in(one.in[0]);
  Lanes& to = out(one.out[0]);
  if (is_float(one.from)) {
    if (is_float(one.type)) {
      return each([&](std::uint32_t l) { to[l] = narrowed(widened(from[l], one.from), one.type); });
    }
    return with_type(one.type, [&](auto t) {
      using T = decltype(t);
      if constexpr (kInteger<T>) {
        each([&](std::uint32_t l) {
          to[l] = saturated<T>(rounded(widened(from[l], one.from), one.round));
        });
      }
    });
  }
  with_type(one.from, [&](auto f) {
    using F = decltype(f);
    if constexpr (kInteger<F>) {
      if (one.type == Type::f32) {
        each([&](std::uint32_t l) { to[l] = to_bits(static_cast<float>(from_bits<F>(from[l]))); });
      } else if (one.type == Type::f64) {
        each([&](std::uint32_t l) { to[l] = to_bits(static_cast<double>(from_bits<F>(from[l]))); });
      } else {
        // An integer is extended as its own type says, then cut to the width of the other.
        with_type(one.type, [&](auto t) {
          using T = decltype(t);
          if constexpr (kInteger<T>) {
            each([&](std::uint32_t l) { to[l] = to_bits(static_cast<T>(from_bits<F>(from[l]))); });
          }
        });
      }
    }
  });
}

}  // namespace ptx
