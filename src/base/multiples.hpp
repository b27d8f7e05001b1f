// Sizes in whole units.
#pragma once

#include <cstddef>

namespace chorus {

/// How many units `size` takes.
constexpr std::size_t divide_up(std::size_t size, std::size_t unit) noexcept {
  return (size + unit - 1) / unit;
}

/// The least multiple of `unit` that is no less than `size`.
constexpr std::size_t round_up(std::size_t size, std::size_t unit) noexcept {
  return divide_up(size, unit) * unit;
}

}  // namespace chorus
