// How much a synthesizer may try, and whom it tells how far it is.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <string_view>

#include "base/work.hpp"

namespace chorus::synth {

/// Given to every synthesizer. One that runs out of it returns the best it has found, or nothing.
///
/// Work is what it is measured in: then equal inputs give equal schedules on every machine, however
/// busy. The clock and a stop are for those who cannot wait.
struct Budget {
  using Clock = std::chrono::steady_clock;
  static constexpr std::uint64_t kAnyWork = std::numeric_limits<std::uint64_t>::max();

  /// Of this thread's work_done: from where to where.
  std::uint64_t first_work = work_done, last_work = kAnyWork;
  Clock::time_point begun = Clock::now(), deadline = Clock::time_point::max();
  const std::atomic<bool>* stop = nullptr;  ///< set by another thread or a signal handler
  std::uint64_t seed = 1;                   ///< equal seeds give equal schedules
  /// Of the schedule that is looked for: none can take less than limit_s, and one that takes more
  /// than useless_s need not be found. Schedules that are only parts of it: without_times().
  double limit_s = 0;
  double useless_s = std::numeric_limits<double>::infinity();
  /// What every step takes beside what is predicted of the wiring, as in PlanOptions.
  double step_s = 0;
  /// What is being done ("all_gather: trees of host0, 3 of 16"). Called often: must be cheap.
  std::function<void(std::string_view)> report;

  [[nodiscard]] bool spent() const { return work_done >= last_work || interrupted(); }
  /// By what differs from run to run.
  [[nodiscard]] bool interrupted() const {
    return (stop != nullptr && stop->load(std::memory_order_relaxed)) ||
           (deadline != Clock::time_point::max() && Clock::now() >= deadline);
  }
  /// What share of the work and the time is left, the smaller one: from 1 to 0.
  [[nodiscard]] double left() const {
    double share = 1;
    if (last_work != kAnyWork) {
      share -= static_cast<double>(work_done - first_work) /
               static_cast<double>(std::max<std::uint64_t>(last_work - first_work, 1));
    }
    if (deadline != Clock::time_point::max()) {
      const std::chrono::duration<double> left = deadline - Clock::now(), all = deadline - begun;
      share = std::min(share, left / std::max(all, std::chrono::duration<double>(1e-9)));
    }
    return std::clamp(share, 0.0, 1.0);
  }

  /// With no more than so much work from now on.
  [[nodiscard]] Budget at_most(double work) const {
    Budget part = *this;
    part.first_work = work_done;
    if (work < static_cast<double>(kAnyWork - work_done)) {
      part.last_work = std::min(last_work, work_done + static_cast<std::uint64_t>(work));
    }
    return part;
  }
  /// A share of the work and the time that are left.
  [[nodiscard]] Budget part(double share) const {
    const std::uint64_t work = last_work - std::min(work_done, last_work);
    Budget part = last_work == kAnyWork ? *this : at_most(share * static_cast<double>(work));
    part.begun = Clock::now();
    if (deadline != Clock::time_point::max()) {
      part.deadline =
          part.begun + std::chrono::duration_cast<Clock::duration>(share * (deadline - part.begun));
    }
    return part;
  }
  /// For a schedule that is a part of the one looked for, to whose duration these do not apply.
  [[nodiscard]] Budget without_times() const {
    Budget part = *this;
    part.limit_s = 0;
    part.useless_s = std::numeric_limits<double>::infinity();
    return part;
  }
  void say(std::string_view what) const {
    if (report) report(what);
  }
};

}  // namespace chorus::synth
