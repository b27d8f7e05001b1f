#include "runtime/engine/wait_policy.hpp"

#include <algorithm>

#include "base/clock.hpp"
#include "base/text/slice.hpp"

namespace chorus {
namespace {

// A wait that spins for so long is a sign that others need the core: this one and the next so many
// yield in every round. Only as many short waits in a row bring plain spinning back.
constexpr std::int64_t kYieldAfterNs = 20'000;
constexpr int kWaitsYielding = 16;
// Unless it is no rank that wants the core: ranks hand it on within microseconds, a program that
// computes keeps it for its slice, of milliseconds, and each yield costs one. For a while such
// waits do not yield.
constexpr std::int64_t kStrangerTookNs = 500'000;
constexpr std::int64_t kBesideOthersNs = 200'000'000;
// A rank that left its core, or tried to, does so no more for so many times what that took.
constexpr std::int64_t kStaysForAMove = 100;
// Beside other programs what a wait spins is taken from the share of the core that this rank
// computes with, while a sleeper gets the core back when it is woken. So it spins only for as long
// as two wake-ups take: a peer that this rank has woken can answer within that.
constexpr double kWakesBesideOthers = 2;

}  // namespace

bool WaitPolicy::is_to_sleep(std::int64_t now_ns, std::int64_t waited_ns) {
  if (waited_ns > 0 && now_ns - looked_ns_ > kStrangerTookNs) lost_core(now_ns);
  looked_ns_ = now_ns;
  const bool beside_others = now_ns < beside_others_until_ns_;
  std::int64_t spin_ns = std::int64_t{options_.spin_us} * 1000;
  if (beside_others) spin_ns = std::min(spin_ns, spin_beside_others_ns());
  if (waited_ns >= spin_ns) return true;
  // The peer may sit on this core all the same, where nobody bound the ranks or hosts are emulated:
  // then one of the two leaves it, or the next waits leave it to the peer from their first round
  // on.
  if (!beside_others && waited_ns > kYieldAfterNs) {
    const Neighbor who = neighbor();
    if (who == Neighbor::rank && leave_core(now_ns)) return false;
    if (who != Neighbor::none) yielding_waits_ = kWaitsYielding;
  }
  return false;
}

// Two ranks that hand one core on to each other never run for long, so the scheduler takes their
// caches for hot and leaves them there, though another core is idle.
bool WaitPolicy::leave_core(std::int64_t now_ns) {
  if (oversubscribed_ || now_ns < stays_until_ns_) return false;
  const bool left = connections_.shared_window()->leave_core();
  stays_until_ns_ = now_ns + kStaysForAMove * (steady_ns() - now_ns);
  return left;
}

void WaitPolicy::before_sleep() const { request_slice(options_.slice_us); }

void WaitPolicy::yield() {
  request_slice(options_.slice_us);
  if (oversubscribed_) {
    ::sched_yield();
    return;
  }
  const std::int64_t before = steady_ns();
  ::sched_yield();
  looked_ns_ = steady_ns();
  if (looked_ns_ - before > kStrangerTookNs) lost_core(looked_ns_);
}

std::int64_t WaitPolicy::spin_beside_others_ns() const {
  const HostRates& rates = *connections_.members()[static_cast<std::size_t>(rank_)].rates;
  return static_cast<std::int64_t>(kWakesBesideOthers * rates.wake_s * 1e9);
}

// Where ranks share memory they tell each other; elsewhere one finds out by yielding.
WaitPolicy::Neighbor WaitPolicy::neighbor() const {
  SharedWindow* const shared_window = connections_.shared_window();
  if (shared_window == nullptr) return Neighbor::unknown;
  return shared_window->shares_core() ? Neighbor::rank : Neighbor::none;
}

// This thread did not run for long, or gave its core away and got it back late.
void WaitPolicy::lost_core(std::int64_t now_ns) {
  if (oversubscribed_ || neighbor() == Neighbor::rank) return;
  beside_others_until_ns_ = now_ns + kBesideOthersNs;
  yielding_waits_ = 0;
}

}  // namespace chorus
