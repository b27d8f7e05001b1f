// How a rail that failed comes back: tried beside the others, and used again when both ends have
// seen it work.
//
// An end that takes its port for sound makes a new queue pair and offers it over the control
// connection. When it has the peer's offer too, it connects and says so; when both have, each
// writes nothing to the other and says whether that was acknowledged: only a path that carries
// requests is taken. Each attempt is one offer and one verdict from either end, so that both count
// attempts alike; who cannot answer an offer yet, because its own port is down, answers later.
#include <fmt/format.h>

#include <algorithm>

#include "chorus/error.hpp"
#include "transports/rdma/link.hpp"

namespace chorus {
namespace {

/// Before a rail is tried of which nobody said that it works again. Adapters tell when a port comes
/// back, and nobody tells of what lies between.
constexpr auto kFirstPause = std::chrono::seconds(5);
constexpr auto kLongestPause = std::chrono::minutes(5);
/// A rail that fails again sooner than this has the next pause doubled.
constexpr auto kSteady = std::chrono::minutes(1);

}  // namespace

/// A rail has gone down now: when to try it again.
void RdmaLink::plan_return(Track& track) {
  Return& back = track.returning;
  const auto now = Clock::now();
  const bool steady = !back.since || now - *back.since > kSteady;
  back.pause = steady ? Clock::duration(kFirstPause)
                      : std::min<Clock::duration>(2 * back.pause, kLongestPause);
  back.hasty = steady;
  back.next_try = now + back.pause;
  back.news = track.rail->device().news();
}

void RdmaLink::bring_back() {
  if (peer_left_ || !failure_.empty()) return;
  for (std::size_t i = 0; i < tracks_.size(); ++i) {
    if (tracks_[i].settled && tracks_[i].once_up) try_return(i);
  }
}

void RdmaLink::try_return(std::size_t rail) {
  Track& track = tracks_[rail];
  Return& back = track.returning;
  if (!back.rail && !offer(rail)) return;
  if (!back.heard) return;
  if (!back.joined) {
    back.joined = true;
    back.rail->connect(peer_.ports[track.peer_port], back.offer_in, connect_in_);
    if (back.rail->failure().empty()) enqueue(RdmaFrame::kJoined, rail, {});
  }
  if (back.own) return;
  if (back.peer_joined && back.rail->posted() == 0 && back.rail->failure().empty()) {
    back.rail->write({.tell = true});
    back.rail->ring();
  }
  back.rail->poll([this](std::uint32_t bits) { on_immediate(bits); });
  const bool bad = !back.rail->failure().empty() || !back.rail->device().fault().empty();
  if (bad || back.peer == false) {
    back.own = false;
  } else if (back.rail->acknowledged() > 0) {
    back.own = true;
  } else {
    return;
  }
  enqueue(RdmaFrame::kVerdict, rail, {}, *back.own ? 1 : 0);
  conclude(rail);
}

/// Makes this end of the rail anew, if it is time and the port is sound.
bool RdmaLink::offer(std::size_t rail) {
  Track& track = tracks_[rail];
  Return& back = track.returning;
  const auto& device = hub_->devices[track.port];
  const auto now = Clock::now();
  const bool news = back.hasty && device->news() != back.news;
  const bool asked = back.heard && device->fault().empty();
  if (now < back.next_try && !news && !asked) return false;
  back.next_try = now + back.pause;
  back.news = device->news();
  if (!device->sound()) return false;
  try {
    back.rail = std::make_unique<RdmaRail>(device, hub_->settings, depths_for(*device), inbox_,
                                           outbox_, counters_);
  } catch (const LinkError&) {  // told when it failed
    return false;
  }
  back.offer_out = end_of(*back.rail, track.port);
  enqueue(RdmaFrame::kOffer, rail, std::as_bytes(std::span(&back.offer_out, 1)));
  return true;
}

/// Once both ends have said how the attempt went.
void RdmaLink::conclude(std::size_t rail) {
  Track& track = tracks_[rail];
  Return& back = track.returning;
  if (!back.own || !back.peer) return;
  const bool works = *back.own && *back.peer;
  back.own.reset();
  back.peer.reset();
  back.heard = back.joined = back.peer_joined = false;
  const auto now = Clock::now();
  if (!works) {
    back.rail.reset();
    back.pause = std::min<Clock::duration>(2 * back.pause, kLongestPause);
    back.next_try = now + back.pause;
    return;
  }
  track.rail = std::move(back.rail);
  track.down = track.told = track.heard = track.settled = false;
  back.since = now;
  --away_;
  find_live();
  say_back(track);
}

}  // namespace chorus
