// Time stamps that cost a few nanoseconds: the processor's own counter where it runs evenly.
#pragma once

#include <cstdint>
#include <ctime>

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

namespace chorus {

/// A counter, and the time that its values mean. clock_gettime() takes 22 ns here, the counter 9.
class Ticks {
 public:
  Ticks() : begun_(now()), begun_ns_(read(CLOCK_MONOTONIC)) {}

  [[nodiscard]] std::uint64_t now() const {
#if defined(__x86_64__)
    if (even_) [[likely]]
      return __rdtsc();
#elif defined(__aarch64__)
    std::uint64_t ticks = 0;
    asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#endif
    return static_cast<std::uint64_t>(read(CLOCK_MONOTONIC));
  }

  /// What readings since this object was made mean, in nanoseconds of Unix time. The longer ago it
  /// was made, the better it knows how long a tick is.
  class Scale {
   public:
    explicit Scale(const Ticks& since)
        : now_(since.now()), unix_ns_(read(CLOCK_REALTIME)), tick_ns_(tick_ns(since, now_)) {}
    [[nodiscard]] std::int64_t unix_ns(std::uint64_t ticks) const {
      const auto ago = static_cast<double>(static_cast<std::int64_t>(now_ - ticks));
      return unix_ns_ - static_cast<std::int64_t>(ago * tick_ns_);
    }

   private:
    static double tick_ns(const Ticks& since, std::uint64_t now) {
      const auto ticks = static_cast<double>(static_cast<std::int64_t>(now - since.begun_));
      const auto ns = static_cast<double>(read(CLOCK_MONOTONIC) - since.begun_ns_);
      return ticks > 0 ? ns / ticks : 0;
    }
    std::uint64_t now_;
    std::int64_t unix_ns_;
    double tick_ns_;
  };

 private:
  static std::int64_t read(clockid_t clock) {
    timespec time{};
    ::clock_gettime(clock, &time);
    return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  }
#if defined(__x86_64__)
  /// The counter of cores that sleep or change their frequency goes on alike ("invariant TSC").
  static bool runs_evenly() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && (d & (1U << 8)) != 0;
  }
  bool even_ = runs_evenly();
#endif

  std::uint64_t begun_;
  std::int64_t begun_ns_;
};

}  // namespace chorus
