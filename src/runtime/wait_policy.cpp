#include "runtime/wait_policy.hpp"

#include "base/clock.hpp"
#include "base/slice.hpp"

namespace chorus {
namespace {

// A wait that spins for so long is a sign that others need the core: this one and the next so many
// yield in every round. Only as many short waits in a row bring plain spinning back.
constexpr std::int64_t kYieldAfterNs = 20'000;
constexpr int kWaitsYielding = 16;
// Unless it is no rank that wants the core: ranks hand it on within microseconds, a program that
// computes keeps it for its slice, of milliseconds. Yielding (or sleeping) then costs a slice each
// time, and the peer, waiting long for this rank, gives up its core as well. For a while such waits
// keep the core, as long as a slice may take the peer's.
constexpr std::int64_t kStrangerTookNs = 500'000;
constexpr std::int64_t kKeepCoreNs = 200'000'000;
constexpr std::int64_t kSpinBesideStrangers = 50;  // times CHORUS_SPIN_US

}  // namespace

bool WaitPolicy::is_to_sleep(std::int64_t now_ns, std::int64_t waited_ns) {
  if (waited_ns > 0 && now_ns - looked_ns_ > kStrangerTookNs) lost_core(now_ns);
  looked_ns_ = now_ns;
  const bool keeps_core = now_ns < keep_core_until_ns_;
  const std::int64_t spin_ns =
      std::int64_t{options_.spin_us} * 1000 * (keeps_core ? kSpinBesideStrangers : 1);
  if (waited_ns >= spin_ns) return true;
  // The peer may sit on this core all the same, where nobody bound the ranks or hosts are emulated:
  // then the next waits leave the core to it from their first round on.
  if (!keeps_core && waited_ns > kYieldAfterNs && neighbor() != Neighbor::none) {
    yielding_waits_ = kWaitsYielding;
  }
  return false;
}

void WaitPolicy::before_sleep() const { request_slice(options_.slice_us); }

void WaitPolicy::yield() {
  request_slice(options_.slice_us);
  if (crowded_) {
    ::sched_yield();
    return;
  }
  const std::int64_t before = steady_ns();
  ::sched_yield();
  looked_ns_ = steady_ns();
  if (looked_ns_ - before > kStrangerTookNs) lost_core(looked_ns_);
}

// Where ranks share memory they tell each other; elsewhere one finds out by yielding.
WaitPolicy::Neighbor WaitPolicy::neighbor() const {
  Commons* const commons = wiring_.commons();
  if (commons == nullptr) return Neighbor::unknown;
  return commons->shares_core() ? Neighbor::rank : Neighbor::none;
}

// This thread did not run for long, or gave its core away and got it back late.
void WaitPolicy::lost_core(std::int64_t now_ns) {
  if (crowded_ || neighbor() == Neighbor::rank) return;
  keep_core_until_ns_ = now_ns + kKeepCoreNs;
  yielding_waits_ = 0;
}

}  // namespace chorus
