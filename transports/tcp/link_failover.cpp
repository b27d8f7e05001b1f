// What becomes of a path of several that is lost, and how it comes again.
//
// A put counts once, whatever happens: a connection that is lost is never read again after both
// ends have agreed on how many of its frames have come, and only the others are sent again.
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <utility>

#include "base/clock.hpp"
#include "base/host.hpp"
#include "base/text/log.hpp"
#include "chorus/error.hpp"
#include "transports/tcp/link.hpp"

namespace chorus {
namespace {

constexpr std::int64_t kMs = 1'000'000;
constexpr std::int64_t kBetweenWatchesNs = 20 * kMs;
/// Without an acknowledgement of anything, beyond what the path's own round trips explain: longer
/// than TCP waits before it sends again what a queue has dropped (200 ms), and once more.
constexpr std::int64_t kPatienceNs = 300 * kMs;
/// Time that nobody watched proves nothing.
constexpr std::int64_t kUnwatchedNs = 200 * kMs;
/// A call that could end waits so long for the peer to say what it lacks; it may be away, and asks
/// when it comes back.
constexpr std::int64_t kSettlementNs = 1000 * kMs;
constexpr std::int64_t kLeavingNs = 2000 * kMs;
/// A path that is lost within this after it came back carries nothing for twice as long the next
/// time, unless no other stands.
constexpr std::int64_t kStoodLongNs = 30'000 * kMs;
constexpr std::int64_t kFirstProbationNs = 1'000 * kMs;
constexpr std::int64_t kMostProbationNs = 15'000 * kMs;
/// Between attempts that fail, at first and at most; and of a path that has never stood.
constexpr std::int64_t kBetweenAttemptsNs = 250 * kMs;
constexpr std::int64_t kMostBetweenAttemptsNs = 4'000 * kMs;
constexpr std::int64_t kMostBetweenVainAttemptsNs = 60'000 * kMs;
/// For the peer's kernel to answer, and then for its process, which may be away.
constexpr std::int64_t kConnectNs = 1000 * kMs;
constexpr std::int64_t kWelcomeNs = 10'000 * kMs;
/// Where somebody waits for his memory.
constexpr std::int64_t kLeastSleepNs = kMs / 10;
constexpr std::int64_t kMostSleepNs = 2 * kMs;
/// The other path carries more than so many times the bytes of the first: small puts move there.
constexpr double kMuchFaster = 4;

double seconds(std::int64_t ns) { return 1e-9 * static_cast<double>(ns); }

}  // namespace

std::size_t TcpLink::paths_up() const {
  return static_cast<std::size_t>(std::count_if(states_.begin(), states_.end(),
                                                [](const PathState& state) { return state.up; }));
}

std::string TcpLink::interface_of(std::size_t path) const {
  const std::string& name = path == 0 ? hub_->rails().front().interface : paths_[path].interface;
  return fmt::format("{} ({})", name.empty() ? "the interface" : name, paths_[path].own.ip_text());
}

void TcpLink::look_after_paths() {
  const std::int64_t now = steady_ns();
  try {
    const std::vector<TcpFrame> notices = std::exchange(notices_, {});
    for (const TcpFrame& notice : notices) read_notice(notice);
    settle_losses();
  } catch (const LinkError& error) {
    peer_lies_ = true;
    failure_ = fmt::format("it sent {}", error.what());
    return;
  }
  if (now - watched_at_ns_ < kBetweenWatchesNs) return;
  watch(now);
  bring_back(now);
}

/// Looks for paths that packets vanish on. That a peer does not read shows otherwise: its kernel
/// acknowledges, and then says that it has no room.
void TcpLink::watch(std::int64_t now_ns) {
  const std::int64_t unwatched = now_ns - watched_at_ns_;
  watched_at_ns_ = now_ns;
  for (PathState& state : states_) state.overdue = false;
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (!stands(i)) continue;
    Watch& seen = watches_[i];
    if (unwatched > kUnwatchedNs) seen.moved_at_ns += unwatched - kBetweenWatchesNs;
    const auto progress = streams_[i].keeps_any() ? progress_of(streams_[i].fd()) : std::nullopt;
    if (!progress || !progress->awaits_acknowledgement ||
        progress->acknowledged_bytes != seen.acknowledged_bytes) {
      seen.moved_at_ns = now_ns;
      if (progress) seen.acknowledged_bytes = progress->acknowledged_bytes;
    } else if (now_ns - seen.moved_at_ns > kPatienceNs + progress->patience_ns) {
      states_[path_of_stream_[i]].overdue = true;
    }
  }
  const auto well = [](const PathState& state) { return state.up && !state.overdue; };
  // Where nothing gets through anywhere it is not the path; the owner has its own deadline.
  if (std::none_of(states_.begin(), states_.end(), well)) return;
  for (std::size_t p = 0; p < states_.size(); ++p) {
    if (!states_[p].up || !states_[p].overdue || leaving_) continue;
    std::int64_t since = now_ns;
    for (int s = paths_[p].first_socket; paths_[p].has(s); ++s) {
      since = std::min(since, watches_[static_cast<std::size_t>(s)].moved_at_ns);
    }
    lose(p, fmt::format("nothing was acknowledged for {:.2f} s", seconds(now_ns - since)));
  }
}

void TcpLink::lose(std::size_t path, const std::string& why) {
  const std::uint32_t incarnation = states_[path].incarnation;
  take_down(path, why);
  choose_express();
  say_all_lost(path, incarnation);
}

void TcpLink::take_down(std::size_t path, const std::string& why) {
  PathState& state = states_[path];
  const std::int64_t now = steady_ns();
  const bool again = state.incarnation > 0 && now - state.changed_at_ns < kStoodLongNs;
  state.probation_ns =
      again ? std::clamp(2 * state.probation_ns, kFirstProbationNs, kMostProbationNs) : 0;
  state.not_before_ns = now + kBetweenAttemptsNs;
  state.failures = 0;
  state.changed_at_ns = now;
  state.up = false;
  if (state.unsettled == 0) state.frames = state.bytes = 0;
  state.why = why;
  for (int s = paths_[path].first_socket; paths_[path].has(s); ++s) {
    const auto socket = static_cast<std::size_t>(s);
    // Nobody shall wait for his memory until the peer, which may be away, has answered.
    streams_[socket].make_own(*this);
    lost_.push_back({.socket = socket,
                     .incarnation = state.incarnation,
                     .stream = std::move(streams_[socket]),
                     .since_ns = now});
    lost_.back().stream.watch(nullptr);
    streams_[socket] = TcpStream(Fd(), 0);
    ++state.unsettled;
  }
}

void TcpLink::say_all_lost(std::size_t path, std::uint32_t incarnation) {
  for (int s = paths_[path].first_socket; paths_[path].has(s); ++s) {
    say_lost(static_cast<std::size_t>(s), incarnation, nullptr);
  }
}

void TcpLink::say_lost(std::size_t socket, std::uint32_t incarnation,
                       const std::uint64_t* received) {
  TcpStream& stream = streams_[express_];
  if (stream.room() == 0) throw LinkError("word of more lost paths than there can be");
  stream.enqueue_own({.magic = TcpFrame::kLost,
                      .channel = static_cast<std::uint16_t>(received == nullptr ? 0 : 1),
                      .tag = static_cast<std::uint32_t>(socket),
                      .offset = received == nullptr ? 0 : *received,
                      .sequence = incarnation,
                      .pieces = 0},
                     {});
  stream.flush(*this);
}

void TcpLink::read_notice(const TcpFrame& notice) {
  const std::size_t socket = notice.tag;
  if (socket >= streams_.size() || notice.channel > 1) {
    throw LinkError("word of a socket that does not exist");
  }
  const std::size_t path = path_of_stream_[socket];
  PathState& state = states_[path];
  const auto find = [&] {
    return std::find_if(lost_.begin(), lost_.end(), [&](const LostConnection& lost) {
      return lost.socket == socket && lost.incarnation == notice.sequence;
    });
  };
  if (!dials() && notice.sequence > state.incarnation) adopt(path);
  if (state.up && state.incarnation == notice.sequence && paths_up() > 1) {
    lose(path, "the other end has lost it");
  }
  const auto lost = find();
  if (lost == lost_.end()) {
    // All is said of it: words of losses overtake one another where they are lost themselves.
    const bool lived = std::ranges::count(state.lived, notice.sequence) > 0;
    const bool stands = state.up && notice.sequence == state.incarnation;
    if (lived && !stands) return;
    // An attempt that only one end took for a success.
    const std::uint32_t latest =
        dials() ? state.incarnation : hub_->incarnation(peer_.rank, static_cast<int>(socket));
    if (notice.sequence > latest || stands) {
      throw LinkError("word of a lost connection that never was");
    }
    if (dials() && notice.sequence == state.incarnation) state.dials.clear();
    if (!state.up) state.incarnation = std::max(state.incarnation, notice.sequence);
    const std::uint64_t nothing = 0;
    if (notice.channel == 0) say_lost(socket, notice.sequence, &nothing);
    return;
  }
  lost->peer_has_stopped = true;
  if (notice.channel == 0) return;
  if (lost->heard) throw LinkError("two counts of what has come by one connection");
  lost->heard = true;
  for (TcpStream::Kept& kept : lost->stream.lacking(notice.offset, *this)) {
    ++state.frames;
    state.bytes += kept.payload.size();
    resend_.push_back(std::move(kept));
  }
}

void TcpLink::settle_losses() {
  for (std::size_t i = 0; i < lost_.size();) {
    LostConnection& lost = lost_[i];
    if (lost.peer_has_stopped && !lost.told) {
      // All that the peer has ever taken for delivered is here.
      while (lost.stream.receive(*this) > 0) {
      }
      if (!lost.stream.stalled()) {
        lost.stream.cut_off(*this);
        const std::uint64_t received = lost.stream.frames_received();
        lost.told = true;
        say_lost(lost.socket, lost.incarnation, &received);
      }
    }
    if (!lost.told || !lost.heard) {
      ++i;
      continue;
    }
    close_at_once(lost.stream.fd());
    const std::size_t path = path_of_stream_[lost.socket];
    lost_.erase(lost_.begin() + static_cast<std::ptrdiff_t>(i));
    if (--states_[path].unsettled == 0) tell_loss(path);
  }
}

void TcpLink::tell_loss(std::size_t path) {
  const PathState& state = states_[path];
  const bool first = hub_->given_up({.peer = peer_.rank,
                                     .interface = paths_[path].interface,
                                     .own = paths_[path].own.ip_text(),
                                     .peers = paths_[path].peer.ip_text(),
                                     .why = state.why}) == 1;
  // One line for a cable, not one for every peer behind it.
  log(first ? LogLevel::warn : LogLevel::debug, fmt::format("[rank {}]", hub_->rank()),
      fmt::format("tcp: lost the path from {} of {} to rank {} at {}: {}; {} messages with {} "
                  "bytes under way on it were sent again by the other paths, which carry all until "
                  "it comes back",
                  interface_of(path), host_name(), peer_.rank, paths_[path].peer.ip_text(),
                  state.why, state.frames, state.bytes));
}

void TcpLink::bring_back(std::int64_t now_ns) {
  bool accepts = false;
  for (std::size_t p = 0; p < states_.size(); ++p) {
    if (leaving_) return;
    if (!dials()) {
      if (!states_[p].up && !std::exchange(accepts, true)) hub_->progress();
      adopt(p);
    } else if (!states_[p].up) {
      dial_again(p, now_ns);
    }
  }
}

void TcpLink::dial_again(std::size_t path, std::int64_t now_ns) {
  PathState& state = states_[path];
  if (state.dials.empty()) {
    if (now_ns < state.not_before_ns) return;
    ++state.incarnation;
    state.ready.clear();
    for (int s = paths_[path].first_socket; paths_[path].has(s); ++s) {
      state.dials.emplace_back(paths_[path], peer_.rank, s, same_kernel_, state.incarnation);
      state.ready.emplace_back();
    }
    state.attempt_ends_ns = now_ns + kConnectNs;
  }
  bool all = true;
  bool greeted = false;
  bool hopeless = false;
  for (std::size_t i = 0; i < state.dials.size(); ++i) {
    try {
      if (!state.ready[i]) state.ready[i] = state.dials[i].progress(*hub_, peer_.nonce);
    } catch (const LinkError&) {  // no descriptor: perhaps later
      hopeless = true;
    }
    all = all && state.ready[i];
    greeted = greeted || state.dials[i].greeted();
    hopeless = hopeless || state.dials[i].hopeless();
  }
  if (all) {
    state.dials.clear();
    return start_again(path, std::move(state.ready));
  }
  if (!hopeless && now_ns < state.attempt_ends_ns + (greeted ? kWelcomeNs : 0)) return;
  state.dials.clear();
  state.ready.clear();
  state.not_before_ns =
      now_ns + std::min(kBetweenAttemptsNs << std::min(++state.failures, 8),
                        state.lived.empty() ? kMostBetweenVainAttemptsNs : kMostBetweenAttemptsNs);
}

void TcpLink::returned(Rank peer) {
  if (peer != peer_.rank || states_.empty() || dials() || leaving_ || withdrawn_ ||
      !failure_.empty()) {
    return;
  }
  for (std::size_t p = 0; p < paths_.size(); ++p) adopt(p);
}

/// Takes up a path that the lower rank has made anew.
void TcpLink::adopt(std::size_t path) {
  PathState& state = states_[path];
  const int first = paths_[path].first_socket;
  const std::uint32_t latest = hub_->incarnation(peer_.rank, first);
  if (latest <= state.incarnation) return;
  for (int s = first; paths_[path].has(s); ++s) {
    if (hub_->incarnation(peer_.rank, s) != latest) return;
  }
  std::vector<Fd> sockets;
  for (int s = first; paths_[path].has(s); ++s) {
    sockets.push_back(hub_->take(peer_.rank, s, latest));
  }
  // The word of its loss has not come, perhaps because no other path stands.
  const std::uint32_t before = state.incarnation;
  const bool was_up = state.up;
  if (was_up) take_down(path, "the other end has lost it");
  state.incarnation = latest;
  start_again(path, std::move(sockets));
  if (was_up) say_all_lost(path, before);
}

void TcpLink::start_again(std::size_t path, std::vector<Fd> sockets) {
  PathState& state = states_[path];
  const std::int64_t now = steady_ns();
  state.trusted_from_ns = now + state.probation_ns;
  start_streams(path, std::move(sockets));
  const double away = seconds(now - std::exchange(state.changed_at_ns, now));
  const std::string when =
      state.probation_ns == 0
          ? std::string()
          : fmt::format(" in {:.0f} s if it stands so long", seconds(state.probation_ns));
  log(hub_->stands(paths_[path].interface) ? LogLevel::warn : LogLevel::debug,
      fmt::format("[rank {}]", hub_->rank()),
      fmt::format("tcp: the path from {} of {} to rank {} at {} carries bytes again{}: it was away "
                  "for {:.1f} s",
                  interface_of(path), host_name(), peer_.rank, paths_[path].peer.ip_text(), when,
                  away));
}

std::vector<bool> TcpLink::carrying(std::int64_t now_ns) const {
  std::vector<bool> carry(paths_.size());
  bool any = false;
  for (std::size_t p = 0; p < paths_.size(); ++p) {
    carry[p] = states_[p].up && now_ns >= states_[p].trusted_from_ns;
    any = any || carry[p];
  }
  for (std::size_t p = 0; p < paths_.size() && !any; ++p) carry[p] = states_[p].up;
  return carry;
}

/// Small puts go by the first path, as long as no other is far faster.
void TcpLink::choose_express() {
  const std::size_t express = express_streams();
  const std::vector<bool> carry = carrying(steady_ns());
  double first = 0;
  double best = 0;
  std::size_t fastest = streams_.size();
  for (std::size_t i = express; i < streams_.size(); ++i) {
    if (!carry[path_of_stream_[i]]) continue;
    const double rate = rates_[i - express].steady_bytes_per_s();
    if (path_of_stream_[i] == 0) first = std::max(first, rate);
    if (fastest == streams_.size() || rate > best) {
      fastest = i;
      best = rate;
    }
  }
  if (fastest == streams_.size()) return;
  const double enough = express_ == 0 ? kMuchFaster : kMuchFaster / 2;
  const bool first_is_slow = first > 0 && best > enough * first;
  express_ = carry[0] && !first_is_slow ? 0 : fastest;
}

/// A broken path is lost; the last one takes the link with it.
void TcpLink::judge_paths() {
  std::size_t up = 0, ended = 0, broken = 0;
  std::size_t culprit = 0;
  std::string why;
  for (std::size_t p = 0; p < paths_.size(); ++p) {
    if (!states_[p].up) continue;
    ++up;
    bool goodbyes = true;
    bool breaks = false;
    for (int s = paths_[p].first_socket; paths_[p].has(s); ++s) {
      const TcpStream& stream = streams_[static_cast<std::size_t>(s)];
      leaving_ = leaving_ || stream.goodbye();
      goodbyes = goodbyes && stream.goodbye();
      if (stream.goodbye() || !stream.broken()) continue;
      breaks = true;
      culprit = p;
      why = why_broken(stream);
    }
    broken += breaks ? 1 : 0;
    ended += goodbyes || breaks || states_[p].overdue ? 1 : 0;
  }
  // A peer that leaves says so on all its paths; not all of them need carry that to us.
  if (leaving_) {
    if (ended == up) take_leave();
    return;
  }
  if (broken == 0) return;
  if (broken == up) {
    failure_ = fmt::format("{} (from {} to {})", why, paths_[culprit].own.ip_text(),
                           paths_[culprit].peer.ip_text());
    return;
  }
  for (std::size_t p = 0; p < paths_.size(); ++p) {
    if (!states_[p].up) continue;
    for (int s = paths_[p].first_socket; paths_[p].has(s); ++s) {
      const TcpStream& stream = streams_[static_cast<std::size_t>(s)];
      if (!stream.broken()) continue;
      lose(p, why_broken(stream));
      break;
    }
  }
}

bool TcpLink::all_free() const {
  if (waiting_bytes_ > 0 || !resend_.empty()) return false;
  const std::int64_t now = lost_.empty() ? 0 : steady_ns();
  return unreleased_ == 0 &&
         std::none_of(lost_.begin(), lost_.end(), [&](const LostConnection& lost) {
           return now - lost.since_ns < kSettlementNs;
         });
}

/// What a path that was lost just now had under way must not be lost with this end.
void TcpLink::wait_for_settlement() {
  const std::int64_t deadline = steady_ns() + kLeavingNs;
  try {
    while (failure_.empty() && !peer_left_ && (!lost_.empty() || !resend_.empty()) &&
           steady_ns() < deadline) {
      static_cast<void>(progress());
      ::poll(nullptr, 0, 1);
    }
  } catch (const LinkError&) {  // told by failure_
  }
}

std::int64_t TcpLink::wants_progress_within_ns() const {
  if (!shares_ || streams_.empty() || peer_left_ || !failure_.empty()) return kNoHurry;
  if (unreleased_ > 0 || tight_)
    return std::clamp(static_cast<std::int64_t>(wait_ns_), kLeastSleepNs, kMostSleepNs);
  return unsettled_ > 0 || !lost_.empty() || paths_up() < paths_.size() ? kBetweenWatchesNs
                                                                        : kNoHurry;
}

}  // namespace chorus
