#include "runtime/engine/call_gate.hpp"

#include <thread>

namespace chorus {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

/// So long without a byte moved nothing is on its way: longer than a round trip between hosts, and
/// than a rank that shares its core waits for its turn.
constexpr milliseconds kRest{4};
/// Large calls go on for longer: later, then.
constexpr milliseconds kPatience{100};

}  // namespace

void CallGate::pass() {
  calls_.fetch_add(1, std::memory_order_relaxed);
  if (!closed_.load(std::memory_order_acquire)) return;
  const auto begin = Clock::now();
  std::unique_lock lock(mutex_);
  opened_.wait_until(lock, begin + kLongest, [&] { return !closed_; });
  held_ += Clock::now() - begin;
}

bool CallGate::close(const std::stop_token& stop) {
  closed_.store(true, std::memory_order_release);
  const auto begin = Clock::now();
  auto rested = begin;
  std::uint64_t seen = moves_.load(std::memory_order_relaxed);
  for (auto now = begin; !stop.stop_requested() && now - begin < kPatience; now = Clock::now()) {
    if (now - rested >= kRest) return true;
    std::this_thread::sleep_for(milliseconds(1));
    const std::uint64_t moves = moves_.load(std::memory_order_relaxed);
    if (moves == seen) continue;
    seen = moves;
    rested = Clock::now();
  }
  open();
  return false;
}

void CallGate::open() {
  {
    const std::lock_guard lock(mutex_);
    closed_.store(false, std::memory_order_release);
  }
  opened_.notify_all();
}

double CallGate::held_s() const {
  const std::lock_guard lock(mutex_);
  return std::chrono::duration<double>(held_).count();
}

}  // namespace chorus
