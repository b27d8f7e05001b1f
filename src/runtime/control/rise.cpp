// The way up: to the coordinator, over a relay of this host where ranks are many.
#include <fmt/format.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>

#include "chorus/error.hpp"
#include "runtime/control/meet.hpp"
#include "runtime/control/relay.hpp"

namespace chorus::net {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

/// Larger worlds do not all connect to one process.
constexpr int kDirect = 64;
/// And not even those that are all on one host, where connections are cheap.
constexpr int kDirectOnOneHost = 1000;
constexpr milliseconds kAnswersIn{5'000};
constexpr milliseconds kAgainAfter{5};
/// From relay to relay, on the way to one that takes another.
constexpr int kMostHops = 16;

std::atomic<int> most_direct{0};

}  // namespace

void relay_above(int ranks) { most_direct = ranks; }

bool goes_by_relay(const Endpoint& coordinator, int world_size) {
  const int asked = most_direct.load(std::memory_order_relaxed);
  if (asked > 0) return world_size > asked;
  return world_size > (coordinator.is_loopback() ? kDirectOnOneHost : kDirect);
}

void listen_beside(const Socket& socket, Caller& caller, Socket* others) {
  if (others == nullptr) return;
  if (!*others) {
    Endpoint here = local_end(socket.get());
    here.set_port(0);
    *others = listen_on(here);
  }
  caller.relay_address = local_end(others->get()).host();
  caller.relay_port = local_end(others->get()).port();
}

namespace {

/// Over this connection, or from there on to where it is sent.
Meeting rise_over(Connecting first, Caller caller, Deadline deadline, Socket* others) {
  for (int hop = 0; hop < kMostHops;) {
    Meeting meeting;
    meeting.socket = std::move(first.socket);
    listen_beside(meeting.socket, caller, others);
    std::string why;
    const Handshake end =
        shake_hands(meeting, caller, first.endpoint.text(), deadline, why, first.endpoint);
    if (end == Handshake::done) return meeting;
    const std::string unanswered = fmt::format("{}: {}", first.endpoint.text(), why);
    if (end == Handshake::elsewhere) {
      ++hop;
    } else if (end == Handshake::broken && Clock::now() + kAgainAfter < deadline) {
      std::this_thread::sleep_for(kAgainAfter);
    } else {
      throw Unanswered(unanswered);
    }
    int error = 0;
    first.socket = connect_to(first.endpoint, deadline, error);
    if (error == ETIMEDOUT && end == Handshake::broken) throw Unanswered(unanswered);
    if (error != 0) {
      throw BootstrapError(fmt::format("{}: {}", first.endpoint.text(), std::strerror(error)));
    }
  }
  throw BootstrapError(fmt::format("{}: the last of {} relays", first.endpoint.text(), kMostHops));
}

}  // namespace

Meeting rise_once(std::span<const wire::Place> places, const Caller& caller, Deadline deadline,
                  Socket* others) {
  std::vector<Connecting> all = start_connecting(places);
  std::string why;
  bool listens = false;
  int error = 0;
  while (auto first = first_connected(all, deadline, error)) {
    // Who listens there may be somebody else, and silent: time is left for the others.
    const auto now = Clock::now();
    const Deadline by = all.empty() ? deadline : now + (deadline - now) / 2;
    try {
      return rise_over(std::move(*first), caller, by, others);
    } catch (const GoneOn&) {
      throw;
    } catch (const Unanswered& failed) {
      why = failed.what();
      listens = true;
    } catch (const BootstrapError& failed) {
      why = failed.what();
    }
  }
  if (listens) throw Unanswered(why);
  if (!why.empty()) throw BootstrapError(why);
  throw BootstrapError(
      fmt::format("{}: {}", places.empty() ? "" : places[0].address, std::strerror(error)));
}

std::optional<Meeting> through_relay(const Endpoint& endpoint, const Caller& caller,
                                     Deadline deadline, const Rise& rise,
                                     std::unique_ptr<Relay>& own) {
  for (int index = 0; Clock::now() < deadline;) {
    const std::string name = Relay::name(caller.secret, endpoint, caller.session, index);
    Meeting meeting;
    meeting.socket = Relay::connect(name);
    if (!meeting.socket) {
      Socket listener = Relay::listen(name);
      if (listener) {
        Socket others;
        try {
          Meeting up = rise(caller, &others);
          own = std::make_unique<Relay>(std::move(listener), std::move(others), std::move(up),
                                        caller.world_size, caller.secret);
        } catch (const BootstrapError& error) {
          // The others of this host need not find out again, where that takes its time.
          if (caller.session == 0 && !caller.returns) {
            const Relay tells(std::move(listener), error.what(), caller.world_size, caller.secret);
          }
          throw;
        }
      } else {
        std::this_thread::sleep_for(kAgainAfter);
      }
      continue;
    }
    std::string why;
    Endpoint elsewhere;
    const Handshake end =
        shake_hands(meeting, caller, endpoint.text(), std::min(deadline, Clock::now() + kAnswersIn),
                    why, elsewhere);
    if (end == Handshake::done) return meeting;
    if (end == Handshake::full) ++index;
    if (end == Handshake::broken || end == Handshake::later)
      std::this_thread::sleep_for(kAgainAfter);
  }
  return std::nullopt;
}

}  // namespace chorus::net
