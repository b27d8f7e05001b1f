// Two threads on two cores, for what probe_host() measures between them.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>

#include "topology/host_rates.hpp"

namespace chorus {

inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Two threads that take turns. A turn is an odd number for the writer, an even one for the reader.
struct Turns {
  alignas(128) std::atomic<std::uint32_t> turn{0};

  void await(std::uint32_t number) {
    for (int spins = 0; turn.load(std::memory_order_acquire) != number; ++spins) {
      if (spins > 10'000) ::sched_yield();  // the other one may have been given this core
    }
  }
  void pass(std::uint32_t number) { turn.store(number, std::memory_order_release); }
};

/// Runs `writer` on one core and `reader` on another. False if either core is not to be had. Throws
/// std::system_error if no thread is.
bool on_cores(const int (&cores)[2], const std::function<void(Turns&)>& writer,
              const std::function<void(Turns&)>& reader);

/// A TCP connection on the loopback between two such threads; nothing if there is none to be had.
[[nodiscard]] std::optional<HostRates::Loopback> probe_loopback(const int (&cores)[2]);

}  // namespace chorus
