// Who comes in: the secret, the version, the world size, and whether the rank is taken.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "base/counted.hpp"
#include "base/host.hpp"
#include "base/text/log.hpp"
#include "runtime/control/coordinator/end.hpp"

namespace chorus {
namespace {

/// Refusals that are warnings. Anybody can cause more, and the log must not be theirs to fill.
constexpr int kMostWarnings = 10;

std::string this_process() { return fmt::format("pid {} on {}", ::getpid(), host_name()); }

std::string name_of(const wire::Hello& hello) {
  return fmt::format("rank {} (pid {} on {})", hello.rank, hello.pid, hello.host);
}

std::uint64_t unix_time_us() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(now).count());
}

}  // namespace

/// `last`: its connection is closed behind it.
void CoordinatorEnd::answer(const Caller& caller, const wire::Frame& frame, bool last) {
  if (caller.carried) {
    const Rank rank = caller.hello.rank;
    const auto content = wire::content_of(*frame);
    const RankList ranks(std::span(&rank, 1));
    return wires_->send(caller.token,
                        wire::Writer(wire::Type::carry).ranks(ranks).share(content.size()), content,
                        frame);
  }
  wires_->send(caller.token, frame);
  if (!last) return;
  wires_->finish(caller.token);
  connections_.erase(caller.token);
}

void CoordinatorEnd::refuse(const Caller& caller, const std::string& sentence, LogLevel level,
                            bool gone_on) {
  if (level <= LogLevel::warn && ++num_warnings_ > kMostWarnings) level = LogLevel::info;
  log(level, "", fmt::format("refused {}: {}", wires_->peer(caller.token), sentence));
  answer(caller, wire::Writer(wire::Type::refused).text(sentence).u8(gone_on ? 1 : 0).share(),
         true);
}

/// Whatever such a hello says is unproved: it is told, and it fails nobody's job.
void CoordinatorEnd::refuse_secret(const Caller& caller) {
  const wire::Hello& hello = caller.hello;
  ++num_wrong_secrets_;
  refusals_ = fmt::format("{} with another secret {} refused, the last from {} as rank {} of {}",
                          num_wrong_secrets_, num_wrong_secrets_ == 1 ? "was" : "were",
                          wires_->peer(caller.token), hello.rank, hello.world_size);
  for (const auto& session : sessions_) session->judge.note_refusals(refusals_);
  refuse(caller,
         fmt::format("{} has another secret than the coordinator ({}): give all ranks the same id, "
                     "or the same CHORUS_SECRET, MASTER_ADDR, MASTER_PORT and TORCHELASTIC_RUN_ID",
                     name_of(hello), this_process()),
         LogLevel::warn);
}

std::optional<std::string> CoordinatorEnd::why_refused(const wire::Hello& hello, Time now) {
  const std::string who = name_of(hello);
  std::optional<std::string> why;
  if (hello.version != wire::version()) {
    why = fmt::format("{} has Chorus {}, the coordinator {}: install one version everywhere", who,
                      hello.version, wire::version());
  } else if (world_size_ == 0 && (hello.world_size < 1 || hello.world_size > wire::kMaxWorld)) {
    return fmt::format("{} joins a world of {}: must be in [1, {}]", who,
                       counted(hello.world_size, "rank"), wire::kMaxWorld);
  } else if (world_size_ == 0) {
    world_size_ = hello.world_size;
  }
  if (!why && hello.world_size != world_size_) {
    why = fmt::format(
        "{} joins a world of {}, but the coordinator ({}) has a world of {}: start all ranks "
        "with one world size",
        who, counted(hello.world_size, "rank"), this_process(), world_size_);
  } else if (!why && (hello.rank < 0 || hello.rank >= world_size_)) {
    why = fmt::format("{} is outside this world of {}", who, counted(world_size_, "rank"));
  }
  for (const auto& session : sessions_) {
    if (why || session->judge.state(hello.rank) != Judge::State::joined ||
        session->judge.identity(hello.rank) == hello.identity) {
      continue;
    }
    why = fmt::format("two processes claim to be one rank: {} and {}",
                      session->judge.name(hello.rank), who);
  }
  if (!why) return std::nullopt;
  // It knows the secret, so it belongs to this job, which will never be complete.
  if (sessions_.empty() && !any_session_over_) open_session(now);
  for (const auto& session : sessions_) session->judge.fail_join(*why, now);
  return why;
}

/// What the ranks of a joining that failed are told, who come again over another relay, too.
std::optional<std::string> CoordinatorEnd::why_join_failed() const {
  const auto failed = std::ranges::find_if(
      sessions_, [](const auto& session) { return session->judge.join_failure().has_value(); });
  return failed == sessions_.end() ? std::nullopt : (*failed)->judge.join_failure();
}

/// A place that outlives its first job (MASTER_PORT) is found by the early ranks of the next one
/// while this process still ends. It serves further joinings that this process itself begins. While
/// its ranks are all there, or still come, there is no next job yet: who does not fit is mistaken.
bool CoordinatorEnd::comes_too_early(const wire::Hello& hello) const {
  if (!host_.joined_often || host_.launcher || hello.identity == net::process_identity() ||
      (sessions_.empty() && !any_session_over_)) {
    return false;
  }
  const bool possible =
      hello.world_size == world_size_ && hello.rank >= 0 && hello.rank < world_size_;
  const auto any = [&](auto holds) {
    return std::any_of(sessions_.begin(), sessions_.end(),
                       [&](const auto& session) { return holds(session->judge); });
  };
  const bool awaited = possible && any([&](const Judge& judge) {
                         return judge.state(hello.rank) == Judge::State::absent;
                       });
  const bool joins_again = possible && any([&](const Judge& judge) {
                             return judge.identity(hello.rank) == hello.identity;
                           });
  const bool mistaken = any([&](const Judge& judge) {
    return judge.forming() || judge.complete() || (judge.join_failure() && !possible);
  });
  return !awaited && (joins_again || !mistaken);
}

CoordinatorEnd::Session& CoordinatorEnd::open_session(Time now) {
  sessions_.push_back(std::make_unique<Session>(
      Session{Judge({.world_size = world_size_,
                     .launcher = host_.launcher,
                     .host_identity = net::process_identity(),
                     .host_text = this_process(),
                     .is_stopped = net::is_stopped,
                     .began_us = host_.succeeds.value_or(unix_time_us()),
                     .successor = host_.succeeds.has_value(),
                     .is_running = net::is_running}),
              std::vector<Token>(static_cast<std::size_t>(world_size_))}));
  sessions_.back()->judge.note_refusals(refusals_);
  sessions_.back()->judge.set_places(places_);
  for (const auto& [rank, how] : gone_) sessions_.back()->judge.ended(rank, how, now);
  return *sessions_.back();
}

CoordinatorEnd::Session* CoordinatorEnd::session_for(const wire::Hello& hello) {
  for (const auto& session : sessions_) {
    if (session->judge.is_untold(hello)) return session.get();
    if (session->judge.state(hello.rank) == Judge::State::absent) return session.get();
  }
  const bool first = sessions_.empty() && !any_session_over_;
  return first || host_.joined_often ? &open_session(Wires::Clock::now()) : nullptr;
}

/// The joining that a rank, or a relay, which has lost its connection belongs to.
CoordinatorEnd::Session* CoordinatorEnd::session_of(const wire::Hello& hello) {
  if (host_.succeeds) {
    if (hello.session != host_.succeeds || any_session_over_) return nullptr;
    return sessions_.empty() ? &open_session(Wires::Clock::now()) : sessions_.front().get();
  }
  for (const auto& session : sessions_) {
    if (session->judge.began_us() == hello.session) return session.get();
  }
  return nullptr;
}

void CoordinatorEnd::greet(Token token, Connection& connection, const wire::Hello& hello,
                           Time now) {
  const Caller caller{token, connection, hello, false};
  if (!wire::proven(hello, connection.nonce, secret_)) {
    if (hello.version == wire::version()) return refuse_secret(caller);
    return refuse(
        caller, fmt::format("it has Chorus {}, the coordinator {}", hello.version, wire::version()),
        LogLevel::warn);
  }
  if (hello.relay_port != 0) return greet_relay(caller, now);
  greet_proven(caller, now);
}

void CoordinatorEnd::greet_proven(const Caller& caller, Time now) {
  const wire::Hello& hello = caller.hello;
  if (hello.session != 0 || host_.succeeds) return greet_follower(caller, now);
  if (hello.wish != wire::Wish::join && !joins_as_usual(hello)) return greet_guest(caller, now);
  if (comes_too_early(hello)) {
    const std::string why = fmt::format(
        "{} holds the place for an earlier joining of {} ranks, and has not joined again",
        this_process(), world_size_);
    log(LogLevel::debug, "", fmt::format("{} is to come later: {}", name_of(hello), why));
    return answer(caller, wire::Writer(wire::Type::later).text(why).share(), true);
  }
  if (const auto why = why_refused(hello, now)) {
    // Where the job fails by it, its ranks say so.
    const bool runs = std::any_of(sessions_.begin(), sessions_.end(), [](const auto& session) {
      return !session->judge.join_failure();
    });
    return refuse(caller, *why, runs ? LogLevel::warn : LogLevel::info);
  }
  Session* session = caller.carried ? caller.connection.session : session_for(hello);
  if (session != nullptr && session->judge.is_untold(hello)) {
    let_in(caller, *session);
    return session->judge.admit_untold(hello);
  }
  if (session == nullptr || session->judge.state(hello.rank) != Judge::State::absent) {
    return refuse(caller,
                  why_join_failed().value_or(fmt::format(
                      "rank {} has joined with this id before; make a new id", hello.rank)),
                  LogLevel::info);
  }
  if (const auto why = session->judge.admit(hello, now)) {
    return refuse(caller, *why, LogLevel::info);
  }
  let_in(caller, *session);
}

/// A process that would be taken in where its job has begun joins it where it has not.
bool CoordinatorEnd::joins_as_usual(const wire::Hello& hello) const {
  if (hello.wish != wire::Wish::rejoin || any_session_over_) return false;
  return sessions_.empty() || std::ranges::any_of(sessions_, [&](const auto& session) {
           return session->judge.forming() && hello.rank >= 0 && hello.rank < world_size_ &&
                  session->judge.state(hello.rank) == Judge::State::absent;
         });
}

/// Who comes for the waiting room: to be taken in, or from those that take others in. Their
/// connections, which last one question, lead here past the relays.
void CoordinatorEnd::greet_guest(const Caller& caller, Time now) {
  const wire::Hello& hello = caller.hello;
  if (hello.version != wire::version() || caller.carried) {
    return refuse(
        caller,
        caller.carried
            ? fmt::format("{} asks for the waiting room through a relay", name_of(hello))
            : fmt::format("{} has Chorus {}, the coordinator {}: install one version everywhere",
                          name_of(hello), hello.version, wire::version()),
        LogLevel::warn);
  }
  const auto reply = [&](wire::Type type) {
    wire::Writer writer(type);
    writer.raw(wire::server_proof(secret_, caller.connection.nonce, hello.nonce));
    return writer;
  };
  const auto later = [&](const std::string& why) {
    answer(caller, wire::Writer(wire::Type::later).text(why).share(), true);
  };
  if (hello.wish == wire::Wish::offer) {
    room_.offer({.place = hello.place, .first = hello.rank, .world_size = hello.world_size}, now);
  } else if (hello.wish == wire::Wish::rejoin) {
    const bool is_there = std::ranges::any_of(sessions_, [&](const auto& session) {
      return hello.rank >= 0 && hello.rank < world_size_ &&
             session->judge.state(hello.rank) == Judge::State::joined;
    });
    if (is_there) {
      return later(fmt::format("a process before {} still is rank {}", name_of(hello), hello.rank));
    }
    const auto seat = room_.ask(hello.identity, hello.rank, now);
    if (!seat) return later("the job has begun, and its members have not called take_in() since");
    return answer(
        caller,
        reply(wire::Type::moved).text(seat->place).i32(seat->rank).i32(seat->world_size).share(),
        true);
  }
  const auto count = static_cast<std::uint32_t>(room_.count(now));
  answer(caller, reply(wire::Type::waiting_room).u32(count).share(), true);
}

/// A rank that lost its coordinator, or its connection: the relay that carried it, or the path.
void CoordinatorEnd::greet_follower(const Caller& caller, Time now) {
  const wire::Hello& hello = caller.hello;
  const std::string who = name_of(hello);
  const bool fits = hello.version == wire::version() && hello.world_size == world_size_ &&
                    hello.rank >= 0 && hello.rank < world_size_;
  std::optional<std::string> why;
  bool has_left = false;  // its relay was gone before it had heard that its goodbye was
  bool gone_on = false;
  if (hello.session == 0) {
    why = fmt::format(
        "{} comes with the id of a job that has begun: {} takes in those alone that were in it; "
        "start a job of its own",
        who, this_process());
  } else if (host_.succeeds && hello.session == host_.succeeds && fits && any_session_over_) {
    why = fmt::format("{} comes too late: the job has ended", who);
    gone_on = true;
  } else if (Session* session = fits ? session_of(hello) : nullptr; session == nullptr) {
    why = fmt::format("{} lost the coordinator of another job than the one that {} {}", who,
                      this_process(), host_.succeeds ? "takes over" : "has");
  } else {
    // It may have noticed before this end has that its connection is gone.
    const bool is_here = session->judge.state(hello.rank) == Judge::State::joined &&
                         session->judge.identity(hello.rank) == hello.identity;
    if (is_here && session->judge.may_return()) {
      drop_connection(*session, hello.rank);
      session->judge.scattered(hello.rank, now);
    }
    has_left = session->judge.state(hello.rank) == Judge::State::left;
    // Where nothing is kept for those that return its connection, which has closed, is its death.
    gone_on = session->judge.is_out(hello.rank) || (is_here && !session->judge.may_return());
    why = session->judge.follow(hello, now);
    if (!why) return let_in(caller, *session);
  }
  refuse(caller, *why, has_left ? LogLevel::info : LogLevel::warn, gone_on);
}

/// What still comes over it is heard no more: the rank says again what matters.
void CoordinatorEnd::drop_connection(Session& session, Rank rank) {
  const Token token = std::exchange(session.connections[static_cast<std::size_t>(rank)], 0);
  const auto found = connections_.find(token);
  if (found == connections_.end() || found->second.relay) return;
  wires_->finish(token);
  connections_.erase(found);
}

void CoordinatorEnd::let_in(const Caller& caller, Session& session) {
  const bool hosting = caller.hello.identity == net::process_identity();
  session.connections[static_cast<std::size_t>(caller.hello.rank)] = caller.token;
  wire::Writer said(caller.carried ? wire::Type::admitted : wire::Type::welcome);
  if (!caller.carried) {
    caller.connection.session = &session;
    caller.connection.rank = caller.hello.rank;
    wires_->trust(caller.token, wire::kMaxFromRank, net::sees_processes_of(caller.hello.identity));
    said.raw(wire::server_proof(secret_, caller.connection.nonce, caller.hello.nonce));
  }
  said.text(this_process()).u8(host_.launcher ? 1 : 0).u8(hosting ? 1 : 0);
  answer(caller, said.share(), false);
}

/// Many of them go on to one that is here: a tree, in which nobody has too many connections.
void CoordinatorEnd::greet_relay(const Caller& caller, Time now) {
  const wire::Hello& hello = caller.hello;
  const bool follows = hello.session != 0 || host_.succeeds;
  if (!follows && comes_too_early(hello)) {
    return answer(caller,
                  wire::Writer(wire::Type::later)
                      .text(fmt::format("{} holds the place for an earlier joining of {} ranks",
                                        this_process(), world_size_))
                      .share(),
                  true);
  }
  auto why = follows ? std::optional<std::string>() : why_refused(hello, now);
  Session* const session = why ? nullptr : follows ? session_of(hello) : session_for(hello);
  // It may have noticed before this end has that its relay is gone.
  const bool returns = session == nullptr && !follows && !why &&
                       std::any_of(sessions_.begin(), sessions_.end(), [&](const auto& each) {
                         return each->judge.state(hello.rank) == Judge::State::joined &&
                                each->judge.identity(hello.rank) == hello.identity &&
                                !each->judge.join_failure();
                       });
  if (returns) {
    return answer(caller,
                  wire::Writer(wire::Type::later)
                      .text(fmt::format("{} is still carried by another relay", name_of(hello)))
                      .share(),
                  true);
  }
  if (session == nullptr) {
    if (!why && !follows) why = why_join_failed();
    return refuse(caller,
                  why.value_or(fmt::format("{} carries ranks of no joining that {} has",
                                           name_of(hello), this_process())),
                  LogLevel::info);
  }
  Connection* least = nullptr;
  std::size_t relays = 0;
  for (auto& [token, connection] : connections_) {
    if (!connection.relay || connection.session != session) continue;
    ++relays;
    if (least == nullptr || connection.sent_there < least->sent_there) least = &connection;
  }
  if (relays >= kRelays) {
    ++least->sent_there;
    return answer(caller,
                  wire::Writer(wire::Type::go_to).text(least->address).u32(least->port).share(),
                  true);
  }
  session->judge.note_relays();
  Connection& connection = caller.connection;
  connection.relay = true;
  connection.session = session;
  connection.rank = hello.rank;
  connection.identity = hello.identity;
  connection.host = hello.host;
  connection.address = hello.relay_address;
  connection.port = hello.relay_port;
  wires_->trust(caller.token, wire::kMaxFromRelay, false);
  wire::Writer welcome(wire::Type::welcome);
  welcome.raw(wire::server_proof(secret_, connection.nonce, hello.nonce)).text(this_process());
  answer(caller, welcome.u8(host_.launcher ? 1 : 0).u8(0).share(), false);
}

}  // namespace chorus
