// Ends a call that cannot be asked to look at the clock.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "synth/budget.hpp"

namespace chorus::synth::exact {

/// While it lives, calls `interrupt` from a thread of its own once the budget is spent, and again
/// until it ends: an interrupt that comes before the call has begun is lost.
class Watchdog {
 public:
  Watchdog(const Budget& budget, std::function<void()> interrupt)
      : budget_(budget), interrupt_(std::move(interrupt)), thread_([this] { watch(); }) {}
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    ended_.notify_one();
    thread_.join();
  }

 private:
  void watch() {
    // A stop is a flag that a signal handler can set: it can only be looked at.
    constexpr auto kEvery = std::chrono::milliseconds(20);
    std::unique_lock lock(mutex_);
    while (!ended_.wait_for(lock, kEvery, [this] { return done_; })) {
      if (budget_.spent()) interrupt_();
    }
  }

  const Budget& budget_;
  std::function<void()> interrupt_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace chorus::synth::exact
