// What is said of rails that cannot be used: one warning for each cause, though both ends of every
// pair notice it.
#include <fmt/format.h>

#include <algorithm>

#include "base/text/log.hpp"
#include "transports/rdma/link.hpp"

namespace chorus {
namespace {

/// For so long the higher rank waits for the lower, which may have given the same warning. A peer
/// that computes does not answer.
constexpr auto kWarnAfter = std::chrono::seconds(2);

}  // namespace

bool RdmaHub::first_time(const std::string& what) { return told.insert(what).second; }

bool RdmaLink::lower() const { return hub_->control->rank() < peer_.control.rank; }

void RdmaLink::say(LogLevel level, const std::string& text) const {
  log(level, fmt::format("[rank {}]", hub_->control->rank()), text);
}

std::string RdmaLink::going_on() const {
  return fmt::format("going on over {}",
                     live_.empty() ? "tcp" : tracks_[live_.front()].rail->name());
}

/// A rail has gone down, and find_live() has been called.
void RdmaLink::say_down(Track& track, const std::string& why, bool by_peer) {
  const std::string line = fmt::format("rdma: {} to rank {}: {}; {}", track.rail->name(),
                                       peer_.control.rank, why, going_on());
  track.noticed = !by_peer;
  const RdmaDevice& device = track.rail->device();
  track.fault = device.fault().empty() ? 0 : device.faults();
  if (by_peer) return say(LogLevel::info, line);
  track.warning = line;
  track.warn_by = Clock::now() + kWarnAfter;
  if (lower()) warn_down(track, LogLevel::warn);
}

void RdmaLink::warn_down(Track& track, LogLevel level) {
  if (track.warning.empty()) return;
  const bool news = first_of_port(track, "failed");
  say(news ? level : LogLevel::info, std::exchange(track.warning, {}));
}

/// A port takes the rails to all peers with it, down and up again: whether this is the first of
/// them.
bool RdmaLink::first_of_port(const Track& track, const char* what) const {
  return track.fault == 0 ||
         hub_->first_time(fmt::format("{} {} {}", track.rail->name(), what, track.fault));
}

/// A rail has come back, and find_live() has been called.
void RdmaLink::say_back(const Track& track) {
  const bool warn = lower() && first_of_port(track, "works again");
  say(warn ? LogLevel::warn : LogLevel::info,
      fmt::format("rdma: {} to rank {} works again: going on over {} of {} rails",
                  track.rail->name(), peer_.control.rank, live_.size(), tracks_.size()));
}

/// Warnings that wait for word from the lower rank, which it does not give.
void RdmaLink::warn_late(Track& track) {
  if (!track.warning.empty() && Clock::now() > track.warn_by) warn_down(track, LogLevel::warn);
}

/// Both ends know which rails stand. `peer`: those that the peer has for sound.
void RdmaLink::say_absent(std::uint32_t peer) {
  std::string absent;
  bool ours = false;  // to tell
  for (std::size_t i = 0; i < tracks_.size(); ++i) {
    const Track& track = tracks_[i];
    if (track.once_up) continue;
    std::string why = track.absent;
    const bool offered = connect_in_.rails[i].queue_pair != 0;
    if (track.rail && offered && !track.rail->failure().empty()) {
      why = fmt::format("{}: {}", track.rail->name(), track.rail->failure());
    }
    // An end that was offered no rail is no cause.
    const bool theirs = !offered || (track.rail && (peer >> i & 1) == 0);
    if (!why.empty()) {
      ours = ours || lower() || !theirs;
    } else if (track.rail) {
      why = fmt::format("{}: the peer cannot use it", track.rail->name());
    }
    if (!why.empty()) absent += (absent.empty() ? "" : "; ") + why;
  }
  if (absent.empty() && !live_.empty()) return;
  if (absent.empty()) {
    absent = "no port of one end reaches one of the other";
    ours = lower();
  }
  const bool warn = ours && hub_->first_time(absent);
  say(warn ? LogLevel::warn : LogLevel::info,
      fmt::format("rdma: to rank {}: {}; {}", peer_.control.rank, absent, going_on()));
}

}  // namespace chorus
