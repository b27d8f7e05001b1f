#include "chorus/types.hpp"

#include <bit>
#include <cstdint>

namespace chorus {

std::string_view name_of(DataType type) {
  switch (type) {
    case DataType::int8:
      return "int8";
    case DataType::uint8:
      return "uint8";
    case DataType::int16:
      return "int16";
    case DataType::uint16:
      return "uint16";
    case DataType::int32:
      return "int32";
    case DataType::uint32:
      return "uint32";
    case DataType::int64:
      return "int64";
    case DataType::uint64:
      return "uint64";
    case DataType::float16:
      return "float16";
    case DataType::bfloat16:
      return "bfloat16";
    case DataType::float32:
      return "float32";
    case DataType::float64:
      return "float64";
    case DataType::float8_e4m3:
      return "float8_e4m3";
    case DataType::float8_e5m2:
      return "float8_e5m2";
  }
  return "unknown type";
}

std::string_view name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::prod:
      return "prod";
    case ReduceOp::min:
      return "min";
    case ReduceOp::max:
      return "max";
    case ReduceOp::avg:
      return "avg";
    case ReduceOp::band:
      return "band";
    case ReduceOp::bor:
      return "bor";
    case ReduceOp::bxor:
      return "bxor";
  }
  return "unknown operation";
}

namespace {

constexpr std::uint32_t kSign = 0x8000'0000U;
constexpr std::uint32_t kInfinity = 0x7F80'0000U;

constexpr int bias(int exponent_bits) { return (1 << (exponent_bits - 1)) - 1; }

/// 2^exponent, a normal float.
float power_of_two(int exponent) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
}

/// Magnitude bits of the finite |value| in a format of the given fields, rounded to nearest even.
/// May run over into the exponent of infinity or beyond: the caller decides what that means.
template <int kExponentBits, int kMantissaBits>
std::uint32_t narrow(std::uint32_t magnitude) {
  constexpr int kShift = 23 - kMantissaBits;
  constexpr std::uint32_t kRebias = 127 - bias(kExponentBits);
  if (kRebias > 0 && magnitude < ((kRebias + 1) << 23)) {
    // Below the smallest normal number: adding 2^23 quanta makes the addition round to quanta.
    const float quanta = power_of_two(1 - bias(kExponentBits) - kMantissaBits + 23);
    const float rounded = std::bit_cast<float>(magnitude) + quanta;
    return std::bit_cast<std::uint32_t>(rounded) - std::bit_cast<std::uint32_t>(quanta);
  }
  const std::uint32_t odd = (magnitude >> kShift) & 1U;
  return ((magnitude + (1U << (kShift - 1)) - 1U + odd) >> kShift) - (kRebias << kMantissaBits);
}

/// Value of finite magnitude bits; exact.
template <int kExponentBits, int kMantissaBits>
float widen(std::uint32_t magnitude) {
  constexpr std::uint32_t kRebias = 127 - bias(kExponentBits);
  if (magnitude >> kMantissaBits == 0) {
    return static_cast<float>(magnitude) * power_of_two(1 - bias(kExponentBits) - kMantissaBits);
  }
  return std::bit_cast<float>((magnitude << (23 - kMantissaBits)) + (kRebias << 23));
}

float with_sign(float magnitude, bool negative) { return negative ? -magnitude : magnitude; }

struct Parts {
  std::uint32_t sign;
  std::uint32_t magnitude;

  explicit Parts(float value)
      : sign(std::bit_cast<std::uint32_t>(value) & kSign),
        magnitude(std::bit_cast<std::uint32_t>(value) & ~kSign) {}
};

float nan(bool negative) { return std::bit_cast<float>(0x7FC0'0000U | (negative ? kSign : 0U)); }

}  // namespace

// NaN keeps its upper payload bits and becomes quiet, as the conversions of x86 and Arm do.
Float16::Float16(float value) {
  const Parts parts(value);
  std::uint32_t half = 0;
  if (parts.magnitude > kInfinity) {
    half = 0x7E00U | ((parts.magnitude >> 13) & 0x3FFU);
  } else if (parts.magnitude == kInfinity) {
    half = 0x7C00U;
  } else {
    half = narrow<5, 10>(parts.magnitude);
    if (half > 0x7C00U) half = 0x7C00U;
  }
  bits = static_cast<std::uint16_t>(half | (parts.sign >> 16));
}

Float16::operator float() const {
  const std::uint32_t sign = (bits & 0x8000U) << 16;
  const std::uint32_t magnitude = bits & 0x7FFFU;
  if (magnitude > 0x7C00U) {
    return std::bit_cast<float>(sign | 0x7FC0'0000U | ((magnitude & 0x3FFU) << 13));
  }
  if (magnitude == 0x7C00U) return std::bit_cast<float>(sign | kInfinity);
  return with_sign(widen<5, 10>(magnitude), sign != 0);
}

BFloat16::BFloat16(float value) {
  const Parts parts(value);
  const std::uint32_t top =
      parts.magnitude > kInfinity ? (parts.magnitude >> 16) | 0x40U : narrow<8, 7>(parts.magnitude);
  bits = static_cast<std::uint16_t>(top | (parts.sign >> 16));
}

BFloat16::operator float() const {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

Float8E4M3::Float8E4M3(float value) {
  constexpr std::uint32_t kLargest = 0x7E;  // 448
  const Parts parts(value);
  std::uint32_t byte = kLargest;
  if (parts.magnitude > kInfinity) {
    byte = 0x7F;
  } else if (parts.magnitude < kInfinity) {
    byte = narrow<4, 3>(parts.magnitude);
    if (byte > kLargest) byte = kLargest;
  }
  bits = static_cast<std::uint8_t>(byte | (parts.sign >> 24));
}

Float8E4M3::operator float() const {
  const bool negative = (bits & 0x80U) != 0;
  const std::uint32_t magnitude = bits & 0x7FU;
  return magnitude == 0x7F ? nan(negative) : with_sign(widen<4, 3>(magnitude), negative);
}

Float8E5M2::Float8E5M2(float value) {
  constexpr std::uint32_t kLargest = 0x7B;  // 57344
  const Parts parts(value);
  std::uint32_t byte = 0x7C;
  if (parts.magnitude > kInfinity) {
    byte = 0x7E;
  } else if (parts.magnitude < kInfinity) {
    byte = narrow<5, 2>(parts.magnitude);
    if (byte > kLargest) byte = kLargest;
  }
  bits = static_cast<std::uint8_t>(byte | (parts.sign >> 24));
}

Float8E5M2::operator float() const {
  const bool negative = (bits & 0x80U) != 0;
  const std::uint32_t magnitude = bits & 0x7FU;
  if (magnitude > 0x7C) return nan(negative);
  if (magnitude == 0x7C) return with_sign(std::bit_cast<float>(kInfinity), negative);
  return with_sign(widen<5, 2>(magnitude), negative);
}

}  // namespace chorus
