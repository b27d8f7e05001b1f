// The clock of waits.
#pragma once

#include <chrono>
#include <cstdint>

namespace chorus {

/// Nanoseconds of a clock that only goes forward, from an arbitrary start.
[[nodiscard]] inline std::int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace chorus
