// A block as one thread of the host: the same code as on the device, with the same memory order,
// where every access that races is atomic and every other one is ordered by acquire and release.
#pragma once

#include <sched.h>
#include <time.h>

#include <cstdint>
#include <cstring>

#include "device/block.hpp"

namespace chorus::device {

class HostMachine {
 public:
  /// A thread that yields may not run again for long.
  static constexpr std::uint32_t kSpinsPerLook = 32;

  HostMachine(BlockShared& shared, std::uint32_t block, std::uint32_t blocks)
      : shared_(shared), block_(block), blocks_(blocks) {}

  [[nodiscard]] BlockShared& shared() const { return shared_; }
  static std::uint32_t thread() { return 0; }
  static std::uint32_t threads() { return 1; }
  [[nodiscard]] std::uint32_t block() const { return block_; }
  [[nodiscard]] std::uint32_t blocks() const { return blocks_; }

  static void sync() {}
  static void sync_line() {}
  static bool all(bool mine) { return mine; }
  static bool any(bool mine) { return mine; }
  static bool all_of_line(bool mine) { return mine; }

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

  // Lines: one thread does the eight parts one after the other, the flag's last; so its release
  // covers all. Read again while the line changes, data must be atomic too.
  static void load_part(std::uint64_t line, std::uint32_t part, std::uint64_t* words,
                        std::uint64_t* flag) {
    const auto* at = reinterpret_cast<const std::uint64_t*>(line);
    *flag = __atomic_load_n(at + 15, __ATOMIC_ACQUIRE);
    words[0] = __atomic_load_n(at + 2 * part, __ATOMIC_RELAXED);
    words[1] = part < 7 ? __atomic_load_n(at + 2 * part + 1, __ATOMIC_RELAXED) : 0;
  }
  static void store_part(std::uint64_t line, std::uint32_t part, const std::uint64_t* words,
                         std::uint64_t flag) {
    auto* at = reinterpret_cast<std::uint64_t*>(line);
    __atomic_store_n(at + 2 * part, words[0], __ATOMIC_RELAXED);
    if (part < 7) {
      __atomic_store_n(at + 2 * part + 1, words[1], __ATOMIC_RELAXED);
    } else {
      __atomic_store_n(at + 15, flag, __ATOMIC_RELEASE);
    }
  }

  static std::uint64_t load_flag(std::uint64_t line) {
    return load_acquire(reinterpret_cast<const std::uint64_t*>(line) + 15);
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
  std::uint32_t block_;
  std::uint32_t blocks_;
};

}  // namespace chorus::device
