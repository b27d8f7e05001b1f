// Whether a rank that waits keeps its core, lends it, or sleeps.
#pragma once

#include <sched.h>

#include <cstdint>

#include "chorus/options.hpp"
#include "runtime/engine/connections.hpp"

namespace chorus {

/// Spins while the answer is likely to come within the time a sleep would cost, then sleeps. Waking
/// another core takes about 40 µs; spinning must outlast a peer that was woken and answers, or two
/// ranks that once slept would wake each other for ever (ping-pong 53 µs in place of 0.3). With
/// more ranks than cores it yields in place of spinning, for the awaited peer needs this very core;
/// elsewhere it leaves a core that it shares with a peer, yields where one may sit on it all the
/// same, but not to other programs, beside which it soon sleeps (docs/runtime.md, Waiting). Of one
/// wait after the other, in one thread.
class WaitPolicy {
 public:
  /// Of `rank` in the group. `oversubscribed`: ranks outnumber the cores of this machine.
  WaitPolicy(const Connections& connections, Rank rank, const Options& options, bool oversubscribed)
      : connections_(connections),
        rank_(rank),
        options_(options),
        oversubscribed_(oversubscribed) {}

  [[nodiscard]] bool oversubscribed() const { return oversubscribed_; }

  /// The first round of a wait in which nothing moves.
  void begin() {
    if (yielding_waits_ > 0) --yielding_waits_;
  }
  /// Passes the time between two looks.
  void pass() {
    if (oversubscribed_ || yielding_waits_ > 0) {
      yield();
    } else {
      pause();
    }
  }
  /// At each look at the clock, `waited_ns` after the first one of this wait: whether to sleep.
  [[nodiscard]] bool is_to_sleep(std::int64_t now_ns, std::int64_t waited_ns);
  void before_sleep() const;
  void after_sleep(std::int64_t now_ns) { looked_ns_ = now_ns; }
  /// Lets another rank have this core, if ranks share cores.
  void give_way() const {
    if (oversubscribed_) ::sched_yield();
  }

  /// Keeps the core, with little use of it.
  static void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
  }

 private:
  enum class Neighbor { none, rank, unknown };  // who else waits on this core
  [[nodiscard]] Neighbor neighbor() const;
  bool leave_core(std::int64_t now_ns);
  [[nodiscard]] std::int64_t spin_beside_others_ns() const;
  void yield();
  void lost_core(std::int64_t now_ns);

  const Connections& connections_;
  const Rank rank_;
  const Options& options_;
  const bool oversubscribed_;
  int yielding_waits_ = 0;                   // still to come, since one lasted long
  std::int64_t beside_others_until_ns_ = 0;  // since one took the core for long
  std::int64_t looked_ns_ = 0;               // at the clock, in this wait
  std::int64_t stays_until_ns_ = 0;          // on whatever core it is
};

}  // namespace chorus
