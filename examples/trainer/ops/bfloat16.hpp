// bfloat16 as both sides know it.
#pragma once

#include <bit>
#include <cstdint>

#include "ops/portable.hpp"

namespace trainer {

/// The upper half of a float.
struct Bfloat16 {
  std::uint16_t bits;
};

namespace kernel {

/// To nearest and even; infinities and NaN stay what they are.
TRAINER_BOTH Bfloat16 rounded(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const bool finite = (bits & 0x7f800000U) != 0x7f800000U;
  const std::uint32_t nearest = bits + 0x7fffU + (bits >> 16 & 1U);
  const std::uint32_t kept = bits | (bits & 0xffffU ? 0x400000U : 0U);
  return {static_cast<std::uint16_t>((finite ? nearest : kept) >> 16)};
}
TRAINER_BOTH float expanded(Bfloat16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}

TRAINER_BOTH void store(float& to, float x) { to = x; }
TRAINER_BOTH void store(double& to, double x) { to = x; }
TRAINER_BOTH void store(Bfloat16& to, float x) { to = rounded(x); }
TRAINER_BOTH void store(Bfloat16& to, double x) { to = rounded(static_cast<float>(x)); }

}  // namespace kernel
}  // namespace trainer
