// How long a synthesizer may try, and whom it tells how far it is.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <string_view>

namespace chorus::synth {

/// Given to every synthesizer. One that runs out of it returns the best it has found, or nothing.
struct Budget {
  using Clock = std::chrono::steady_clock;

  Clock::time_point deadline = Clock::time_point::max();
  const std::atomic<bool>* stop = nullptr;  ///< set by another thread or a signal handler
  std::uint64_t seed = 1;                   ///< equal seeds give equal schedules
  int threads = 1;
  /// Of the schedule that is looked for: none can take less than limit_s, and one that takes more
  /// than useless_s need not be found. Schedules that are only parts of it: without_times().
  double limit_s = 0;
  double useless_s = std::numeric_limits<double>::infinity();
  /// What is being done ("all_gather: trees of host0, 3 of 16"). Called often: must be cheap.
  std::function<void(std::string_view)> report;

  [[nodiscard]] bool spent() const {
    return (stop != nullptr && stop->load(std::memory_order_relaxed)) || Clock::now() >= deadline;
  }
  /// For a schedule that is a part of the one looked for, to whose duration these do not apply.
  [[nodiscard]] Budget without_times() const {
    Budget part = *this;
    part.limit_s = 0;
    part.useless_s = std::numeric_limits<double>::infinity();
    return part;
  }
  /// One of so many equal parts of the time that is left.
  [[nodiscard]] Budget part_of(int parts) const {
    Budget part = *this;
    if (deadline == Clock::time_point::max()) return part;
    const Clock::time_point now = Clock::now();
    part.deadline = now + (deadline - now) / parts;
    return part;
  }
  void say(std::string_view what) const {
    if (report) report(what);
  }
};

}  // namespace chorus::synth
