// Two threads on two cores, for what probe_host() measures between them.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>

#include "topology/discover/host_rates.hpp"

namespace chorus {

inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Two threads that take turns. A turn is an odd number for the writer, an even one for the reader.
struct Turns {
  using Time = std::chrono::steady_clock::time_point;
  /// Thrown to whoever waits when the time is up: other programs keep the cores.
  struct Overdue {};

  explicit Turns(Time end) : end_(end) {}

  alignas(128) std::atomic<std::uint32_t> turn{0};

  /// Keeps its core: who gives it away each time that the other has none seldom finds it there.
  void await(std::uint32_t number) { await(number, false); }
  /// Gives the core away at once: the other thread needs this very core.
  void await_on_one_core(std::uint32_t number) { await(number, true); }
  void pass(std::uint32_t number) { turn.store(number, std::memory_order_release); }

 private:
  void await(std::uint32_t number, bool yields) {
    constexpr unsigned kSpinsPerLook = 1024;
    for (unsigned spins = 1; turn.load(std::memory_order_acquire) != number; ++spins) {
      if (!yields && spins % kSpinsPerLook != 0) continue;
      if (std::chrono::steady_clock::now() > end_) throw Overdue();
      if (yields) ::sched_yield();
    }
  }

  Time end_;
};

/// Runs `writer` on one core and `reader` on another. False if either core is not to be had, or if
/// they are not through by `end`. Throws std::system_error if no thread is to be had.
bool on_cores(const int (&cores)[2], Turns::Time end, const std::function<void(Turns&)>& writer,
              const std::function<void(Turns&)>& reader);

/// A TCP connection on the loopback between two such threads; nothing if there is none to be had.
[[nodiscard]] std::optional<HostRates::Loopback> probe_loopback(const int (&cores)[2],
                                                                Turns::Time end);

}  // namespace chorus
