// Kernels of what replicas exchange in place of plain sums: values in 8 bits, and values that mix.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "ops/portable.hpp"

namespace trainer::kernel {

/// y = own · y + weight · x, in double.
template <class R>
struct Mix {
  R* y;
  const R* x;
  double own, weight;
  TRAINER_BOTH void operator()(std::size_t i) const {
    y[i] = static_cast<R>(own * static_cast<double>(y[i]) + weight * static_cast<double>(x[i]));
  }
};

/// Values of a block, as chorus::compress::Nearest8 has them.
inline constexpr std::size_t kPackedBlock = 512;
TRAINER_BOTH std::size_t packed_blocks(std::size_t count) {
  return (count + kPackedBlock - 1) / kPackedBlock;
}

/// `to`: the step of every block in float32, low byte first and at any address; then a signed byte
/// per value. One team per block.
template <class R>
struct Pack {
  std::uint8_t* to;
  const R* x;
  std::size_t n, blocks;
  template <class Team>
  TRAINER_BOTH void operator()(Team& team, std::size_t block) const {
    const std::size_t begin = block * kPackedBlock;
    const std::size_t end = begin + kPackedBlock < n ? begin + kPackedBlock : n;
    R most = R(0);
    for (std::size_t i = begin + team.rank(); i < end; i += team.size()) {
      const R size = std::abs(x[i]);
      most = most > size ? most : size;
    }
    const auto largest = static_cast<float>(team.largest(most));
    const float scale = largest > 0 ? 127.0F / largest : 0.0F;
    for (std::size_t i = begin + team.rank(); i < end; i += team.size()) {
      const auto code = static_cast<std::int8_t>(std::nearbyint(static_cast<float>(x[i]) * scale));
      to[blocks * sizeof(float) + i] = static_cast<std::uint8_t>(code);
    }
    if (team.rank() != 0) return;
    const auto step = std::bit_cast<std::uint32_t>(largest / 127.0F);
    for (std::size_t k = 0; k < sizeof step; ++k) {
      to[block * sizeof step + k] = static_cast<std::uint8_t>(step >> 8 * k & 0xffU);
    }
  }
};

/// sum += what Pack made.
template <class R>
struct AddPacked {
  R* sum;
  const std::uint8_t* from;
  std::size_t blocks;
  TRAINER_BOTH void operator()(std::size_t i) const {
    const std::uint8_t* at = from + i / kPackedBlock * sizeof(float);
    std::uint32_t step = 0;
    for (std::size_t k = 0; k < sizeof step; ++k) step |= std::uint32_t{at[k]} << 8 * k;
    const auto code = static_cast<std::int8_t>(from[blocks * sizeof(float) + i]);
    sum[i] += static_cast<R>(std::bit_cast<float>(step) * static_cast<float>(code));
  }
};

}  // namespace trainer::kernel
