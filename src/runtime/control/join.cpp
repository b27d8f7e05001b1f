// Meeting: connect, prove the secret to each other, wait for all.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "base/check.hpp"
#include "base/text/log.hpp"
#include "chorus/error.hpp"
#include "runtime/control/control.hpp"
#include "runtime/control/coordinator/host.hpp"
#include "runtime/control/coordinator/lateness.hpp"
#include "runtime/control/impl.hpp"
#include "runtime/control/meet.hpp"

namespace chorus {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;

/// An id exists once its coordinator listens, so a refused connection means that it has ended.
constexpr milliseconds kRefusedFor{1'000};
constexpr milliseconds kPause{30};
/// How long one attempt waits for the coordinator's next word.
constexpr milliseconds kHandshake{5'000};
constexpr milliseconds kAnswer{500};
/// How often those who wait for others look whether that is worth a word.
constexpr milliseconds kLook{100};

/// Why the coordinator at `place` was not met, in the end.
[[noreturn]] void give_up(Rank rank, const std::string& place, int timeout_ms,
                          const std::string& later, const std::string& why) {
  if (!later.empty()) {
    throw BootstrapError(fmt::format(
        "rank {}: not admitted at {} for {} ms: {}{}; is another job still running there?", rank,
        place, timeout_ms, later, why == later ? "" : fmt::format("; in the end: {}", why)));
  }
  throw BootstrapError(
      fmt::format("rank {}: no coordinator at {} after {} ms: {}; is the process that made the id, "
                  "usually rank 0's, still running and reachable?",
                  rank, place, timeout_ms, why));
}

/// Until the coordinator at `endpoint`, or the relay to which it sends a relay on, is met.
net::Meeting rise(net::Endpoint endpoint, net::Caller caller, Time deadline, int timeout_ms,
                  net::Socket* others) {
  const net::Endpoint first = endpoint;
  const std::string place = endpoint.text();
  Time last_listened = Clock::now();
  std::string later;  // what a coordinator there said, another job's perhaps: ours comes after it
  std::string why = "nobody answers";
  do {
    int error = 0;
    net::Meeting meeting;
    net::Handshake end = net::Handshake::broken;
    meeting.socket = net::connect_to(endpoint, deadline, error);
    if (error == 0) {
      last_listened = Clock::now();
      net::listen_beside(meeting.socket, caller, others);
      try {
        end = net::shake_hands(meeting, caller, place,
                               std::min(deadline, Clock::now() + kHandshake), why, endpoint);
      } catch (const wire::Malformed& malformed) {
        throw BootstrapError(fmt::format("what listens at {} is not a Chorus coordinator: {}",
                                         endpoint.text(), malformed.what()));
      }
      if (end == net::Handshake::done || end == net::Handshake::answered) return meeting;
      if (end == net::Handshake::later) later = why;
      // Whoever waits for a job to take it in waits as long as somebody is there to ask.
      if (end == net::Handshake::later && caller.wish == wire::Wish::rejoin) {
        deadline = Clock::now() + milliseconds(timeout_ms);
      }
    } else {
      why = std::strerror(error);
    }
    if (error == ECONNREFUSED && later.empty() &&
        (caller.returns || Clock::now() - last_listened > kRefusedFor)) {
      const std::string sentence = fmt::format(
          "rank {}: nothing listens at {}: the process that made the id, usually rank "
          "0's, has ended",
          caller.rank, endpoint.text());
      if (caller.returns) throw net::HostEnded(sentence);
      throw BootstrapError(sentence);
    }
    if (error == ENETUNREACH && endpoint.is_loopback()) {
      throw BootstrapError(fmt::format(
          "rank {}: cannot reach {}: the loopback interface is down (ip link set lo up)",
          caller.rank, place));
    }
    if (end == net::Handshake::elsewhere) continue;
    endpoint = first;
    std::this_thread::sleep_for(kPause);
  } while (Clock::now() < deadline);
  give_up(caller.rank, place, timeout_ms, later, why);
}

}  // namespace

net::Endpoint Control::Impl::first_endpoint() const {
  net::Endpoint endpoint;
  CHORUS_CHECK(net::Endpoint::parse(places[0].address, places[0].port, endpoint), "it was one");
  return endpoint;
}

std::optional<net::RoomAnswer> Control::Impl::go_or_wait(Time deadline, int timeout_ms) {
  const net::Caller caller{
      .rank = rank, .world_size = world_size, .secret = secret, .wish = wire::Wish::rejoin};
  net::Meeting meeting = rise(first_endpoint(), caller, deadline, timeout_ms, nullptr);
  if (!meeting.room.place.empty()) return std::move(meeting.room);
  meet(std::move(meeting));
  return std::nullopt;
}

/// The process that was to hold it has died, perhaps, and another has its place: elsewhere that is
/// known, or soon will be.
void Control::Impl::go_to_coordinator(Time deadline, int timeout_ms, const Joining& how) {
  try {
    go_to_coordinator(deadline, timeout_ms);
  } catch (const net::HostEnded&) {
    throw;
  } catch (const BootstrapError&) {
    const auto why = how.is_in_vain ? how.is_in_vain(kVerdictGraceMs) : std::nullopt;
    if (!why) throw;
    throw BootstrapError(*why);
  }
}

void Control::Impl::go_to_coordinator(Time deadline, int timeout_ms) {
  const net::Endpoint endpoint = first_endpoint();
  const net::Caller caller{
      .rank = rank, .world_size = world_size, .secret = secret, .returns = !host_text.empty()};
  const net::Rise until_met = [&](net::Caller as, net::Socket* others) {
    return rise(endpoint, std::move(as), deadline, timeout_ms, others);
  };
  by_relay = most_direct > 0 ? world_size > most_direct : net::goes_by_relay(endpoint, world_size);
  if (!by_relay) return meet(until_met(caller, nullptr));
  std::unique_ptr<Relay> own;
  auto meeting = net::through_relay(endpoint, caller, deadline, until_met, own);
  if (own) relay = std::move(own);
  if (!meeting) {
    give_up(rank, coordinator, timeout_ms, "", "the relay of this host does not answer");
  }
  meet(std::move(*meeting));
}

void Control::Impl::meet(net::Meeting&& meeting) {
  socket = std::move(meeting.socket);
  watch_socket();
  inbox = std::move(meeting.inbox);
  host_text = std::move(meeting.host_text);
  launcher = meeting.launcher;
  hosting = meeting.hosting;
  address = std::move(meeting.address);
  inbox.set_limit(2 * wire::kMaxText);
}

void Control::Impl::ask_for_missing(std::unique_lock<std::mutex>& lock) {
  join_missing.reset();
  send(wire::Writer(wire::Type::join_query).share());
  wait(lock, Clock::now() + kAnswer,
       [&] { return joined || join_failure || disconnected || join_missing; });
}

void Control::Impl::wait_for_all(Time deadline, int timeout_ms, const Joining& how) {
  std::unique_lock lock(mutex);
  const auto settled = [&] { return joined || join_failure || (disconnected && !by_relay); };
  const Time start = Clock::now();
  Lateness lateness(how.warn_after_ms);
  std::optional<std::string> in_vain;
  const auto ask = [&] {
    if (how.is_in_vain && !in_vain) in_vain = how.is_in_vain(0);
  };
  while (!in_vain && !wait(lock, std::min(deadline, Clock::now() + kLook), settled, ask)) {
    if (disconnected) {  // its relay is gone, perhaps with the rank that ends the joining
      const std::string end = *std::exchange(disconnected, std::nullopt);
      lock.unlock();
      bool has_ended = false;
      try {
        go_to_coordinator(deadline, timeout_ms, how);
      } catch (const net::HostEnded&) {
        has_ended = true;
      }
      lock.lock();
      if (!has_ended) continue;
      disconnected = end;
      break;
    }
    const bool over = Clock::now() >= deadline;
    const auto late_s = lateness.due(std::chrono::nanoseconds(Clock::now() - start).count());
    if (late_s || over) ask_for_missing(lock);
    if (over) break;
    if (!late_s || !join_missing || join_missing->empty() || !join_speaks) continue;
    log(LogLevel::warn, fmt::format("[rank {}/{}]", rank, world_size),
        fmt::format("still waiting for {} to join at {} after {:.3g} s{}{}", *join_missing,
                    coordinator, *late_s, join_refusals.empty() ? "" : "; ", join_refusals));
  }
  if (joined) return;
  if (join_failure) {
    failure = join_failure;
  } else if (disconnected) {
    failure = disconnection(nullptr);
  } else if (in_vain) {
    failure = in_vain;
  } else {
    failure = fmt::format("rank {} waited {} ms for {} to join at {}{}{}", rank, timeout_ms,
                          join_missing ? *join_missing : "the coordinator", coordinator,
                          join_refusals.empty() ? "" : "; ", join_refusals);
  }
  say_goodbye(lock);
  throw BootstrapError(*failure);
}

std::shared_ptr<Control> Control::join(const std::string& id, Rank rank, int world_size,
                                       int timeout_ms, const Joining& how) {
  const net::Id parsed = net::Id::parse(id);
  if (world_size < 1 || world_size > wire::kMaxWorld || rank < 0 || rank >= world_size) {
    throw InputError(fmt::format("rank {} of {}: the world size must be in [1, {}], the rank below",
                                 rank, world_size, wire::kMaxWorld));
  }
  for (;;) {
    auto impl = std::make_unique<Impl>();
    const auto deadline = Clock::now() + milliseconds(timeout_ms);
    impl->rank = rank;
    impl->world_size = world_size;
    impl->secret = parsed.secret;
    impl->coordinator = parsed.endpoint.text();
    impl->places = {{parsed.endpoint.host(), parsed.endpoint.port()}};
    impl->own_addresses = how.own_addresses;
    impl->most_direct = how.most_direct;
    std::optional<net::RoomAnswer> moved;
    if (how.rejoin) {
      moved = impl->go_or_wait(deadline, timeout_ms);
    } else {
      // Before the last rank comes, so that all hear of every path before the job begins.
      listen_also(id, [&] { return impl->addresses(parsed.endpoint.host()); });
      impl->go_to_coordinator(deadline, timeout_ms, how);
    }
    if (!moved) {
      impl->wait_for_all(how.rejoin ? Clock::now() + milliseconds(timeout_ms) : deadline,
                         timeout_ms, how);
      return std::shared_ptr<Control>(new Control(std::move(impl)));
    }
    try {
      Joining taken_in = how;
      taken_in.rejoin = false;
      auto control = join(net::grown_id(parsed.secret, moved->place).text(), moved->rank,
                          moved->world_size, timeout_ms, taken_in);
      control->impl_->taken_in = true;
      return control;
    } catch (const BootstrapError& error) {  // one of the others did not come: back to waiting
      log(LogLevel::warn, fmt::format("[rank {}/{}]", moved->rank, moved->world_size),
          fmt::format("not taken in, and waiting again: {}", error.what()));
    }
  }
}

}  // namespace chorus
