// When a wait has become long enough to be mentioned: after an interval, then each time the wait
// has doubled.
#pragma once

#include <cstdint>
#include <optional>

namespace chorus {

class Lateness {
 public:
  /// `after_ms` as Options::warn_after_ms.
  explicit Lateness(int after_ms) : after_ns_(std::int64_t{after_ms} * 1'000'000) {}

  [[nodiscard]] bool may_be_due(std::int64_t waited_ns) const {
    return after_ns_ > 0 && waited_ns >= after_ns_;
  }
  /// A wait that has lasted `waited_ns` by now: its length in seconds, when it is to be mentioned.
  /// A shorter one than at the last call is another wait.
  [[nodiscard]] std::optional<double> due(std::int64_t waited_ns) {
    if (after_ns_ == 0) return std::nullopt;
    if (waited_ns < last_ns_) next_ns_ = 0;
    last_ns_ = waited_ns;
    if (next_ns_ == 0) next_ns_ = after_ns_;
    if (waited_ns < next_ns_) return std::nullopt;
    while (next_ns_ <= waited_ns) next_ns_ *= 2;
    return static_cast<double>(waited_ns) * 1e-9;
  }

 private:
  std::int64_t after_ns_;
  std::int64_t next_ns_ = 0, last_ns_ = 0;
};

}  // namespace chorus
