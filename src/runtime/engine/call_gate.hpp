// Holds calls back while the network is measured beside them.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <stop_token>

namespace chorus {

/// Between the threads of one rank that make calls and the one that measures. What is measured
/// while calls move bytes is the rest that they leave, so each measurement waits until calls under
/// way have come to rest, and calls that begin wait until it is over: a tenth of a second, about.
class CallGate {
 public:
  // Threads that make calls.

  /// Before a collective over the network begins. None is held longer than kLongest.
  void pass();
  /// One is complete.
  void completed() { completed_.fetch_add(1, std::memory_order_relaxed); }
  /// A call has moved bytes.
  void moved() {
    moves_.store(moves_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  // The thread that measures.

  /// Holds calls back from now on, and returns when none has moved bytes for a while; false if they
  /// go on moving, or were told to stop: then the gate is open again.
  bool close(const std::stop_token& stop);
  void open();
  /// How long calls have been held in all; s.
  [[nodiscard]] double held_s() const;
  /// Calls that have begun so far.
  [[nodiscard]] std::uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool is_calling() const {
    return completed_.load(std::memory_order_relaxed) != calls();
  }

  static constexpr std::chrono::milliseconds kLongest{500};

 private:
  std::atomic<std::uint64_t> moves_ = 0, calls_ = 0, completed_ = 0;
  std::atomic<bool> closed_ = false;
  mutable std::mutex mutex_;
  std::condition_variable opened_;
  std::chrono::nanoseconds held_{0};  ///< guarded by mutex_
};

}  // namespace chorus
