// A block as threads of the host, one by default: the same code as on the device, with the same
// memory order, where every access that races is atomic and every other one is ordered by barriers,
// acquire and release.
#pragma once

#include <sched.h>
#include <time.h>

#include <array>
#include <atomic>
#include <barrier>
#include <cstdint>
#include <cstring>

#include "device/block.hpp"

namespace chorus::device {

/// Where the threads of one block meet.
class HostBlock {
 public:
  explicit HostBlock(std::uint32_t threads)
      : threads_(threads), barrier_(static_cast<std::ptrdiff_t>(threads)) {}

  [[nodiscard]] std::uint32_t threads() const { return threads_; }
  /// True if `mine` is true of all threads. `round` counts each thread's meetings.
  bool all(bool mine, std::uint32_t round, bool first) {
    if (threads_ == 1) return mine;
    // Those of two rounds ago have been read by all, since all have come to the round after it.
    if (first) refused_[(round + 1) % 3].store(false, std::memory_order_relaxed);
    if (!mine) refused_[round % 3].store(true, std::memory_order_relaxed);
    barrier_.arrive_and_wait();
    return !refused_[round % 3].load(std::memory_order_relaxed);
  }

 private:
  std::uint32_t threads_;
  std::barrier<> barrier_;
  std::array<std::atomic<bool>, 3> refused_{};
};

class HostMachine {
 public:
  /// A thread that yields may not run again for long.
  static constexpr std::uint32_t kSpinsPerLook = 32;

  HostMachine(BlockShared& shared, HostBlock& meeting, std::uint32_t block, std::uint32_t blocks,
              std::uint32_t thread = 0)
      : shared_(shared), meeting_(meeting), block_(block), blocks_(blocks), thread_(thread) {}

  [[nodiscard]] BlockShared& shared() const { return shared_; }
  [[nodiscard]] std::uint32_t thread() const { return thread_; }
  [[nodiscard]] std::uint32_t threads() const { return meeting_.threads(); }
  [[nodiscard]] std::uint32_t block() const { return block_; }
  [[nodiscard]] std::uint32_t blocks() const { return blocks_; }

  void sync() { all(true); }
  bool all(bool mine) { return meeting_.all(mine, round_++, thread_ == 0); }
  bool any(bool mine) { return !all(!mine); }

  static std::uint64_t load_acquire(const std::uint64_t* at) {
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
  }
  static void store_release(std::uint64_t* at, std::uint64_t value) {
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
  }
  static std::uint64_t load_relaxed(const std::uint64_t* at) {
    return __atomic_load_n(at, __ATOMIC_RELAXED);
  }
  static void store_relaxed(std::uint64_t* at, std::uint64_t value) {
    __atomic_store_n(at, value, __ATOMIC_RELAXED);
  }
  static std::uint64_t add(std::uint64_t* at, std::uint64_t value) {
    return __atomic_fetch_add(at, value, __ATOMIC_ACQ_REL);
  }
  static bool first(std::uint64_t* at) {
    std::uint64_t expected = 0;
    return __atomic_compare_exchange_n(at, &expected, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  }

  static void load_pair(std::uint64_t from, std::uint64_t* words) {
    std::memcpy(words, reinterpret_cast<const void*>(from), 16);
  }
  static void store_pair(std::uint64_t to, const std::uint64_t* words) {
    std::memcpy(reinterpret_cast<void*>(to), words, 16);
  }

  // Words: each half carries its own flag.
  static void load_words(std::uint64_t from, std::uint64_t* halves) {
    const auto* at = reinterpret_cast<const std::uint64_t*>(from);
    halves[0] = __atomic_load_n(at, __ATOMIC_RELAXED);
    halves[1] = __atomic_load_n(at + 1, __ATOMIC_RELAXED);
  }
  static void store_words(std::uint64_t to, const std::uint64_t* halves) {
    auto* at = reinterpret_cast<std::uint64_t*>(to);
    __atomic_store_n(at, halves[0], __ATOMIC_RELAXED);
    __atomic_store_n(at + 1, halves[1], __ATOMIC_RELAXED);
  }

  static void tell_host(std::uint64_t* at, std::uint64_t value) { store_release(at, value); }

  static void pause(std::uint32_t spins) {
    if (spins > 8) ::sched_yield();
  }
  static std::uint64_t now_ns() {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
           static_cast<std::uint64_t>(now.tv_nsec);
  }

 private:
  BlockShared& shared_;
  HostBlock& meeting_;
  std::uint32_t block_;
  std::uint32_t blocks_;
  std::uint32_t thread_;
  std::uint32_t round_ = 0;
};

}  // namespace chorus::device
