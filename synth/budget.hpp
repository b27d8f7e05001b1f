// How long a synthesizer may try, and whom it tells how far it is.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string_view>

namespace chorus::synth {

/// Given to every synthesizer. One that runs out of it returns the best it has found, or nothing.
struct Budget {
  using Clock = std::chrono::steady_clock;

  Clock::time_point deadline = Clock::time_point::max();
  const std::atomic<bool>* stop = nullptr;  ///< set by another thread or a signal handler
  std::uint64_t seed = 1;                   ///< equal seeds give equal schedules
  int threads = 1;
  /// What is being done ("all_gather: trees of host0, 3 of 16"). Called often: must be cheap.
  std::function<void(std::string_view)> report;

  [[nodiscard]] bool spent() const {
    return (stop != nullptr && stop->load(std::memory_order_relaxed)) || Clock::now() >= deadline;
  }
  void say(std::string_view what) const {
    if (report) report(what);
  }
};

}  // namespace chorus::synth
