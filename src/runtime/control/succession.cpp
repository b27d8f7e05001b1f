// When the coordinator is lost: to a successor, with all that this rank knows and has under way.
#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <thread>
#include <utility>

#include "base/text/log.hpp"
#include "chorus/error.hpp"
#include "runtime/control/coordinator/judge.hpp"
#include "runtime/control/impl.hpp"

namespace chorus {
namespace {

using std::chrono::milliseconds;
using wire::Type;
using wire::Writer;

/// A successor that does not answer within this time is stopped, or behind a cut of the network.
constexpr milliseconds kAnswersWithin{500};
/// One that answered decides within this time of the last rank that came, or goes elsewhere.
constexpr milliseconds kDecidesWithin{3'000};
/// How often the successors are gone to in turn: ranks that were scattered over them meet.
constexpr std::size_t kRounds = 2;
/// How soon a rank that computes answers while the others gather: its follower reads for it.
constexpr milliseconds kReadsFor{20};
/// An attempt that came to nothing may have taken the connection away: the next one soon follows.
constexpr milliseconds kTriesAgainAfter{100};
/// Results that others may have missed are kept: so many, and of so many bytes but for the latest.
constexpr std::size_t kFinishedKept = 16, kFinishedBytes = 1 << 20;

}  // namespace

// Being ready.

bool Control::Impl::has_died(Rank of) const {
  return std::any_of(deaths.begin(), deaths.end(),
                     [&](const Death& death) { return death.rank == of; });
}

void Control::Impl::be_ready(std::uint64_t session) {
  if (!socket) return;
  std::vector<wire::Place> listening;
  try {
    own_successor = std::make_unique<Coordinator>(world_size, address, 0, secret,
                                                  Coordinator::Host{.succeeds = session});
    listening = own_successor->listen_also(addresses(address));
  } catch (const Error& error) {
    log(LogLevel::info, fmt::format("[rank {}/{}]", rank, world_size),
        fmt::format("this rank cannot take over the coordinator: {}", error.what()));
  }
  send(wire::places_frame(Type::listening, listening));
}

void Control::Impl::hear_successors(wire::Reader& body) {
  successors = wire::read_successors(body, world_size);
  if (!successors.empty() && !follower && socket) start_follower();
}

void Control::Impl::keep_result(Finished result) {
  finished_bytes += result.result.size();
  finished.push_back(std::move(result));
  while (finished.size() > kFinishedKept ||
         (finished.size() > 1 && finished_bytes > kFinishedBytes)) {
    finished_bytes -= finished.front().result.size();
    finished.pop_front();
  }
}

void Control::Impl::give_result(std::uint64_t number) {
  const auto found = std::find_if(finished.begin(), finished.end(),
                                  [&](const Finished& each) { return each.number == number; });
  if (found == finished.end()) return;
  send(Writer(Type::exchange_held).append(found->result).share());
}

void Control::Impl::start_follower() {
  auto own = std::make_shared<Follower>();
  own->wake = net::Socket(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!own->wake) return;
  follower = own;
  // Signals belong to the program's own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  // Detached, because a child forked by this process has no such thread to join.
  std::thread([this, own] {
    ::pthread_setname_np(::pthread_self(), "chorus-follow");
    follow_while_needed(*own);
    const std::lock_guard lock(own->mutex);
    own->ended = true;
    own->changed.notify_all();
  }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Control::Impl::stop_follower() {
  if (!follower || owner_generation != net::fork_generation()) return;
  follower->stop = true;
  wake_follower();
  std::unique_lock lock(follower->mutex);
  follower->changed.wait(lock, [this] { return follower->ended; });
}

void Control::Impl::wake_follower() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(follower->wake.get(), &one, sizeof one);
}

Control::Impl::~Impl() { stop_follower(); }

void Control::Impl::follow_while_needed(Follower& own) {
  while (!own.stop) {
    wait_for_loss(own);
    if (own.stop) return;
    std::unique_lock lock(mutex);
    if (following == Following::gathering) {
      pump();
      wake_pollers();
    }
    if (following == Following::gathering && Clock::now() >= own.decided_by) seek_again();
    if (following == Following::seeking) seek(lock, own);
    if (following == Following::no && has_other_paths()) resume(lock, own);
    if (disconnected) return;
  }
}

int Control::Impl::follower_wait_ms(const Follower& own) const {
  if (following == Following::gathering) return kReadsFor.count();
  if (following == Following::seeking || !has_other_paths()) return -1;
  return own.hurries ? kTriesAgainAfter.count() : Follower::kHeartbeatEvery.count();
}

/// Until the connection ends, or the successor should have decided. Data is for the rank to read,
/// in its own time.
void Control::Impl::wait_for_loss(Follower& own) {
  short events = POLLRDHUP;
  int wait_ms = -1, watched = -1;
  {
    const std::lock_guard lock(mutex);
    watched = socket.get();
    wait_ms = follower_wait_ms(own);
    if (following != Following::seeking && !outbox.empty()) events |= POLLOUT;
  }
  std::array<pollfd, 2> entries{pollfd{watched, events, 0}, pollfd{own.wake.get(), POLLIN, 0}};
  ::poll(entries.data(), entries.size(), wait_ms);
  std::uint64_t drained = 0;
  [[maybe_unused]] const auto got = ::read(own.wake.get(), &drained, sizeof drained);
  if (own.stop || entries[0].revents == 0) return;
  const std::lock_guard lock(mutex);
  if ((entries[0].revents & ~POLLOUT) != 0) {
    pump();
    return wake_pollers();
  }
  if (following != Following::seeking && !outbox.flush(socket.get())) outbox.clear();
}

// Following.

bool Control::Impl::may_follow() const {
  return joined && follower && !goodbye_heard && !expelled && !last_word &&
         (by_relay || has_other_paths() || !successors.empty());
}

/// To the next successor that can be reached, in turn; without any this rank goes on alone.
void Control::Impl::seek(std::unique_lock<std::mutex>& lock, Follower& own) {
  if (newly_lost) {
    seek_from(own, 0);
  }
  for (; !own.stop; own.next = 0, ++own.round) {
    while (own.next < own.places.size()) {
      const wire::Successor next = own.places[own.next++];
      if (has_died(next.rank)) continue;
      auto meeting = meet_at(next.places, Clock::now() + kAnswersWithin, lock, own);
      if (meeting && !own.stop) return bring_all(std::move(*meeting), next.places);
      if (own.gone_on) break;
      // So it cannot be said of that process that it has ended.
      if (own.unanswered && next.rank == host_rank) loss = wire::Loss::silent;
    }
    if (own.gone_on) break;
    // Where no other rank was met there is nobody to wait for.
    if (too_few.second == 0 || own.round + 1 == kRounds) break;
  }
  if (own.stop) return;
  if (!last_word) last_word = why_lost(own.why);
  hosting = false;
  lose_for_good(loss_how);
}

/// Which of the successors is next, of those that there are now.
void Control::Impl::seek_from(Follower& own, std::size_t next) {
  newly_lost = false;
  too_few = {};
  own.places = successors;
  // Perhaps only the relay is gone, or the path, or this rank's connection: then nobody else comes
  // to a successor, and a coordinator that has told this rank's death says so. Where its process
  // has ended, nothing listens.
  if ((by_relay || has_other_paths() || loss == wire::Loss::closed) && !host_left) {
    own.places.insert(own.places.begin(), {host_rank, places});
  }
  own.why.clear();
  own.gone_on = false;
  own.next = next;
  own.round = 0;
}

/// The connection is to be another one.
void Control::Impl::seek_again() {
  close_socket();
  following = Following::seeking;
}

/// A connection to who listens at one of these, made without the mutex.
std::optional<net::Meeting> Control::Impl::meet_at(const std::vector<wire::Place>& where,
                                                   Time deadline,
                                                   std::unique_lock<std::mutex>& lock,
                                                   Follower& own) {
  net::Endpoint first;
  if (where.empty() || !net::Endpoint::parse(where[0].address, where[0].port, first)) return {};
  const net::Caller caller{rank, world_size, secret, began_us};
  std::optional<net::Meeting> meeting;
  std::unique_ptr<Relay> next_relay;
  own.unanswered = false;
  lock.unlock();
  try {
    const net::Rise once = [&](const net::Caller& as, net::Socket* others) {
      return net::rise_once(where, as, deadline, others);
    };
    meeting = by_relay ? net::through_relay(first, caller, deadline, once, next_relay)
                       : once(caller, nullptr);
  } catch (const net::GoneOn& refusal) {
    own.why = refusal.what();
    own.gone_on = true;
  } catch (const net::Unanswered& failed) {
    own.why = failed.what();
    own.unanswered = true;
  } catch (const BootstrapError& refusal) {
    own.why = refusal.what();
  } catch (const wire::Malformed& malformed) {
    log(LogLevel::info, "",
        fmt::format("what listens at {} is not a coordinator of this job: {}", first.text(),
                    malformed.what()));
  }
  lock.lock();
  if (next_relay) relay = std::move(next_relay);
  return meeting;
}

/// What a new coordinator has to know, in the words in which this rank told the lost one.
void Control::Impl::bring_all(net::Meeting&& meeting, const std::vector<wire::Place>& from) {
  follower->decided_by = Clock::now() + kDecidesWithin;
  places = from;
  socket = std::move(meeting.socket);
  watch_socket();
  follower->unacknowledged = 0;
  inbox = std::move(meeting.inbox);
  inbox.set_limit(std::min<std::size_t>(
      UINT32_MAX, (wire::kMaxBlob + 4) * static_cast<std::size_t>(world_size) + 1024));
  outbox.clear();
  following = Following::gathering;
  sent_on = false;
  wire::Follow known{.loss = loss,
                     .host_rank = host_rank,
                     .host_text = host_text,
                     .last_result = last_result,
                     .deaths = {deaths.begin(), deaths.end()},
                     .successors = successors,
                     .verdicts = {verdicts.begin(), verdicts.end()}};
  send(wire::follow_frame(known));
  for (const wire::Frame& frame : wire::roster_frames(roster)) send(frame);
  for (const auto& [key, group] : groups) {
    send(Writer(Type::open_group).text(key).ranks(group.members).share());
    for (const wire::Frame& frame : {group.last_call, group.last_message, group.ending}) {
      if (frame) send(frame);
    }
    for (const wire::Frame& frame : group.notes_said) send(frame);
    if (group.verdict) continue;
    for (const wire::Frame& frame : group.claims) send(frame);
    if (group.aborting) send(group.aborting);
  }
  for (const Finished& each : finished) {
    constexpr std::size_t kBody = 5;  // behind the length and the type
    const auto body = std::as_bytes(std::span(*each.asked)).subspan(kBody);
    send(Writer(Type::exchange_done).u64(each.number).append(body).share());
  }
  for (const auto& [key, exchange] : exchanges) {
    if (exchange.asked && !exchange.blobs && !exchange.failure) send(exchange.asked);
  }
  send(Writer(Type::followed).share());
  if (goodbye) send(goodbye);
  next_host_text = std::move(meeting.host_text);
  hosting = meeting.hosting;
}

/// Why this rank has no coordinator any more; nothing if there is none, for anybody.
std::optional<std::string> Control::Impl::why_lost(const std::string& why) const {
  const std::string lost = fmt::format("the coordinator ({}) was lost: {}", host_text, loss_how);
  if (too_few.second > 0) {
    return fmt::format(
        "the network is split, or too many ranks have ended at once: {}, and {} of the {} ranks "
        "that were alive came to its successor; this is the smaller part, and ends: more than half "
        "are needed to go on",
        lost, too_few.first, too_few.second);
  }
  if (!why.empty()) return fmt::format("{}, and this rank has no other: {}", lost, why);
  return std::nullopt;
}

}  // namespace chorus
