// Where the coordinator is reached by several addresses and the connection falls silent: on by
// another path, to the same coordinator, with all that this rank knows and has under way.
#include <fmt/format.h>

#include <utility>

#include "base/text/log.hpp"
#include "runtime/control/coordinator/judge.hpp"
#include "runtime/control/impl.hpp"

namespace chorus {
namespace {

using wire::Type;
using wire::Writer;

/// So many heartbeats in a row are not acknowledged: the path is lost. The kernel does not say so
/// in every case: what the other end sends again, since it hears nothing, counts for keepalive as a
/// sign of life, and what this host drops itself counts as never sent.
constexpr int kSilentAfter = 3;
/// An attempt waits so long for an answer, by whatever path.
constexpr std::chrono::milliseconds kReachedWithin{1'000};

}  // namespace

std::vector<std::string> Control::Impl::addresses(const std::string& first) const {
  const bool leaves_host = first != "::1" && !first.starts_with("127.");
  return own_addresses && leaves_host ? own_addresses(first) : std::vector<std::string>{};
}

void Control::Impl::hear_places(wire::Reader& body) {
  places = wire::read_places(body);
  body.end();
  if (places.empty()) throw wire::Malformed("a coordinator that is nowhere");
  if (!socket || !has_other_paths()) return;
  if (!follower) return start_follower();
  wake_follower();  // it may wait for the connection's end alone, since there was no other path
}

/// On the follower's thread. Until another path is found the connection stays: it may answer yet.
void Control::Impl::resume(std::unique_lock<std::mutex>& lock, Follower& own) {
  own.hurries = false;
  if (!joined || goodbye_heard || disconnected) return;
  const Time now = Clock::now();
  const bool beats = now >= own.beat_at + Follower::kHeartbeatEvery;
  const std::uint64_t acknowledged = net::acknowledged(socket.get());
  if (std::exchange(own.acknowledged, acknowledged) != acknowledged) {
    own.unacknowledged = 0;
  } else if (beats) {
    ++own.unacknowledged;
  }
  if (beats) own.beat_at = now;
  if (own.unacknowledged < kSilentAfter) {
    if (beats) send(Writer(Type::heartbeat).share());
    return;
  }
  const std::string before = net::local_end(socket.get()).host();
  const std::vector<wire::Place> where = places;
  auto meeting = meet_at(where, Clock::now() + kReachedWithin, lock, own);
  own.hurries = !meeting;
  // The coordinator goes by the new connection now, whatever became of the other one.
  if (!meeting || own.stop || disconnected) return;
  log(LogLevel::warn, fmt::format("[rank {}/{}]", rank, world_size),
      fmt::format(
          "the coordinator ({}) did not answer any more by the path from {}, and is reached "
          "by the one from {}",
          host_text, before, net::local_end(meeting->socket.get()).host()));
  close_socket();
  loss = wire::Loss::silent;
  loss_how = kSilent;
  seek_from(own, 1);
  bring_all(std::move(*meeting), where);
}

}  // namespace chorus
