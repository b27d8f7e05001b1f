#include "transports/tcp/pace.hpp"

#include <algorithm>

namespace chorus {
namespace {

/// Some round trips, and a queue of a few milliseconds.
constexpr std::int64_t kFillsNs = 60'000'000;
constexpr std::int64_t kMeasuresNs = 100'000'000;
/// A queue that overflows costs a window, mostly: seldom enough not to matter.
constexpr std::int64_t kMostWaitNs = 60'000'000'000;
/// More than headers and the ends of packets make.
constexpr double kClearlyFaster = 1.1;

}  // namespace

double Pace::rate() const {
  switch (phase_) {
    case Phase::steady:
      return pace_;
    case Phase::fills:
    case Phase::measures:
      return kFaster * pace_;
    case Phase::drains:
      return (2 - kFaster) * pace_;
  }
  return pace_;
}

bool Pace::next(std::int64_t now_ns, std::uint64_t acknowledged) {
  switch (phase_) {
    case Phase::steady:
      if (until_ns_ == 0) {  // it has only begun to be busy
        until_ns_ = now_ns + wait_ns_;
        return false;
      }
      phase_ = Phase::fills;
      until_ns_ = now_ns + kFillsNs;
      return true;
    case Phase::fills:
      phase_ = Phase::measures;
      until_ns_ = now_ns + kMeasuresNs;
      began_ns_ = now_ns;
      began_bytes_ = acknowledged;
      return false;
    case Phase::measures:
      break;
    case Phase::drains:
      phase_ = Phase::steady;
      until_ns_ = now_ns + wait_ns_;
      return true;
  }
  const double seen = static_cast<double>(acknowledged - began_bytes_) /
                      (1e-9 * static_cast<double>(now_ns - began_ns_));
  phase_ = Phase::steady;
  if (seen > kClearlyFaster * pace_) {
    pace_ = std::min(seen, kFaster * pace_);  // a look that comes late has seen a burst
    wait_ns_ = kFirstWaitNs;
    until_ns_ = now_ns + wait_ns_;
  } else {
    wait_ns_ = std::min(2 * wait_ns_, kMostWaitNs);
    phase_ = Phase::drains;
    until_ns_ = now_ns + kFillsNs + kMeasuresNs;
  }
  return true;
}

void Pace::rest(std::int64_t now_ns) {
  const bool was_trying = phase_ != Phase::steady;
  phase_ = Phase::steady;
  // Busy for a moment now and then, it would never come to a trial if each moment began the wait.
  if (was_trying) until_ns_ = now_ns + wait_ns_;
}

}  // namespace chorus
