// How long a synthesizer may try, and whom it tells how far it is.
#pragma once

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <functional>
#include <optional>
#include <string_view>

namespace chorus::synth {

/// Time of the processor that the thread which made this may use up. Other programs take none of
/// it, so that what ends by it ends at the same place beside them.
class CpuLimit {
 public:
  explicit CpuLimit(std::chrono::nanoseconds most) {
    ::pthread_getcpuclockid(::pthread_self(), &clock_);
    end_ = used() + most;
  }
  /// For any thread to ask, as long as that one lives.
  [[nodiscard]] bool over() const { return used() >= end_; }

 private:
  [[nodiscard]] std::chrono::nanoseconds used() const {
    timespec now{};
    ::clock_gettime(clock_, &now);
    return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
  }

  clockid_t clock_{};
  std::chrono::nanoseconds end_;
};

/// Given to every synthesizer. One that runs out of it returns the best it has found, or nothing.
struct Effort {
  using Clock = std::chrono::steady_clock;

  Clock::time_point deadline = Clock::time_point::max();
  std::optional<CpuLimit> cpu = std::nullopt;
  const std::atomic<bool>* stop = nullptr;  ///< set by another thread or a signal handler
  std::uint64_t seed = 1;                   ///< equal seeds give equal schedules
  int threads = 1;
  /// What is being done ("all_gather: trees of host0, 3 of 16"). Called often: must be cheap.
  std::function<void(std::string_view)> report;

  [[nodiscard]] bool spent() const {
    return (stop != nullptr && stop->load(std::memory_order_relaxed)) || Clock::now() >= deadline ||
           (cpu && cpu->over());
  }
  void say(std::string_view what) const {
    if (report) report(what);
  }
};

}  // namespace chorus::synth
