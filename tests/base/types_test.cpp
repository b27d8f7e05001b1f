#include "chorus/types.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <string>

namespace chorus {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(Types, EveryTypeAndOperationHasItsOwnName) {
  std::set<std::string> names;
  for (int i = 0; i < kNumDataTypes; ++i) names.emplace(name_of(static_cast<DataType>(i)));
  for (int i = 0; i < kNumReduceOps; ++i) names.emplace(name_of(static_cast<ReduceOp>(i)));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kNumDataTypes + kNumReduceOps));
  EXPECT_EQ(name_of(DataType::float8_e5m2), "float8_e5m2");
  EXPECT_EQ(name_of(ReduceOp::avg), "avg");
}

TEST(Types, IntegersAloneHaveBitsToCombine) {
  for (int i = 0; i < kNumDataTypes; ++i) {
    const auto type = static_cast<DataType>(i);
    const bool integer = name_of(type).find("int") != std::string_view::npos;
    EXPECT_EQ(is_integer(type), integer) << name_of(type);
    for (int o = 0; o < kNumReduceOps; ++o) {
      const auto op = static_cast<ReduceOp>(o);
      const bool bits = name_of(op).front() == 'b';
      EXPECT_EQ(is_bitwise(op), bits) << name_of(op);
      EXPECT_EQ(applies(op, type), integer || !bits) << name_of(op) << " of " << name_of(type);
    }
  }
}

/// The value of a bit pattern by the definition of the format, in double.
double value_of(unsigned magnitude, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(magnitude >> mantissa_bits);
  const double mantissa = magnitude & ((1U << mantissa_bits) - 1U);
  const double unit = std::ldexp(1.0, -mantissa_bits);
  return exponent == 0 ? std::ldexp(mantissa * unit, 1 - bias)
                       : std::ldexp(1.0 + mantissa * unit, exponent - bias);
}

/// Checks every finite value of a format, and the midpoints between neighbours and what lies just
/// beside them. `largest` is the magnitude of the largest finite value.
template <class Narrow, class Bits>
void check_finite(int exponent_bits, int mantissa_bits, unsigned largest, Bits sign) {
  for (unsigned m = 0; m <= largest; ++m) {
    Narrow narrow;
    narrow.bits = static_cast<Bits>(m);
    const float value = static_cast<float>(narrow);
    ASSERT_EQ(value, value_of(m, exponent_bits, mantissa_bits)) << m;
    ASSERT_EQ(Narrow(value).bits, m);
    ASSERT_EQ(Narrow(-value).bits, m | sign);
    if (m == largest) continue;
    const double next = value_of(m + 1, exponent_bits, mantissa_bits);
    const float middle = static_cast<float>((static_cast<double>(value) + next) / 2);
    if (static_cast<double>(middle) != (static_cast<double>(value) + next) / 2) continue;
    ASSERT_EQ(Narrow(middle).bits, m + (m & 1U)) << m;
    ASSERT_EQ(Narrow(std::nextafter(middle, 0.0F)).bits, m) << m;
    ASSERT_EQ(Narrow(std::nextafter(middle, kInf)).bits, m + 1) << m;
  }
}

TEST(Types, NarrowFloatsRoundEveryFiniteValueToNearestEven) {
  check_finite<Float16, std::uint16_t>(5, 10, 0x7BFF, 0x8000);
  check_finite<BFloat16, std::uint16_t>(8, 7, 0x7F7F, 0x8000);
  check_finite<Float8E4M3, std::uint8_t>(4, 3, 0x7E, 0x80);
  check_finite<Float8E5M2, std::uint8_t>(5, 2, 0x7B, 0x80);
}

TEST(Types, HalfTypesOverflowToInfinityAndFp8Saturates) {
  EXPECT_EQ(Float16(65519.0F).bits, 0x7BFF);
  EXPECT_EQ(Float16(65520.0F).bits, 0x7C00);
  EXPECT_EQ(Float16(-1e30F).bits, 0xFC00);
  EXPECT_EQ(BFloat16(std::numeric_limits<float>::max()).bits, 0x7F80);
  EXPECT_EQ(Float8E4M3(1e30F).bits, 0x7E);
  EXPECT_EQ(Float8E4M3(-449.0F).bits, 0xFE);
  EXPECT_EQ(Float8E4M3(kInf).bits, 0x7E);
  EXPECT_EQ(Float8E5M2(1e30F).bits, 0x7B);
  EXPECT_EQ(Float8E5M2(-kInf).bits, 0xFC);
  EXPECT_EQ(static_cast<float>(Float8E5M2(kInf)), kInf);
  EXPECT_EQ(static_cast<float>(Float16(-kInf)), -kInf);
  EXPECT_EQ(static_cast<float>(BFloat16(kInf)), kInf);
}

TEST(Types, NanStaysNan) {
  EXPECT_TRUE(std::isnan(static_cast<float>(Float16(kNan))));
  EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(kNan))));
  EXPECT_TRUE(std::isnan(static_cast<float>(Float8E4M3(-kNan))));
  EXPECT_TRUE(std::isnan(static_cast<float>(Float8E5M2(kNan))));
  // A payload in the lowest bits alone must not turn into infinity.
  const float low_payload = std::bit_cast<float>(0x7F80'0001U);
  EXPECT_TRUE(std::isnan(static_cast<float>(Float16(low_payload))));
  EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(low_payload))));
}

}  // namespace
}  // namespace chorus
