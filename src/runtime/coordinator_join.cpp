// Who comes in: the secret, the version, the world size, and whether the rank is taken.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "base/counted.hpp"
#include "base/host.hpp"
#include "base/log.hpp"
#include "runtime/coordinator_impl.hpp"

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

void Coordinator::Impl::refuse(Connection& connection, const std::string& sentence,
                               LogLevel level) {
  if (level <= LogLevel::warn && ++num_warnings_ > kMostWarnings) level = LogLevel::info;
  log(level, "", fmt::format("refused {}: {}", connection.peer, sentence));
  add(connection, wire::Writer(wire::Type::refused).text(sentence).share());
  connection.closing = true;
}

/// Whatever such a hello says is unproved: it is told, and it fails nobody's job.
void Coordinator::Impl::refuse_secret(Connection& connection, const wire::Hello& hello) {
  ++num_wrong_secrets_;
  refusals_ = fmt::format("{} with another secret {} refused, the last from {} as rank {} of {}",
                          num_wrong_secrets_, num_wrong_secrets_ == 1 ? "was" : "were",
                          connection.peer, hello.rank, hello.world_size);
  for (const auto& session : sessions_) session->judge.note_refusals(refusals_);
  refuse(connection,
         fmt::format("{} has another secret than the coordinator ({}): give all ranks the same id, "
                     "or the same CHORUS_SECRET, MASTER_ADDR, MASTER_PORT and TORCHELASTIC_RUN_ID",
                     name_of(hello), this_process()),
         LogLevel::warn);
}

std::optional<std::string> Coordinator::Impl::why_refused(const wire::Hello& hello, Time now) {
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
    make_room_for_descriptors();
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

/// A place that outlives its first job (MASTER_PORT) is found by the early ranks of the next one
/// while this process still ends. It serves further joinings that this process itself begins. While
/// its ranks are all there, or still come, there is no next job yet: who does not fit is mistaken.
bool Coordinator::Impl::comes_too_early(const wire::Hello& hello) const {
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
    return judge.forming() || judge.complete() || (judge.join_failed() && !possible);
  });
  return !awaited && (joins_again || !mistaken);
}

Coordinator::Impl::Session& Coordinator::Impl::open_session(Time now) {
  sessions_.push_back(std::make_unique<Session>(
      Session{Judge({.world_size = world_size_,
                     .launcher = host_.launcher,
                     .host_identity = net::process_identity(),
                     .host_text = this_process(),
                     .is_stopped = net::is_stopped,
                     .began_us = host_.succeeds.value_or(unix_time_us()),
                     .successor = host_.succeeds.has_value(),
                     .is_running = net::is_running}),
              std::vector<std::uint64_t>(static_cast<std::size_t>(world_size_))}));
  sessions_.back()->judge.note_refusals(refusals_);
  for (const auto& [rank, how] : gone_) sessions_.back()->judge.ended(rank, how, now);
  return *sessions_.back();
}

Coordinator::Impl::Session* Coordinator::Impl::session_for(Rank rank) {
  for (const auto& session : sessions_) {
    if (session->judge.state(rank) == Judge::State::absent) return session.get();
  }
  const bool first = sessions_.empty() && !any_session_over_;
  return first || host_.joined_often ? &open_session(Clock::now()) : nullptr;
}

void Coordinator::Impl::greet(std::uint64_t token, Connection& connection, const wire::Hello& hello,
                              Time now) {
  if (!wire::proven(hello, connection.nonce, id.secret)) {
    if (hello.version == wire::version()) return refuse_secret(connection, hello);
    return refuse(
        connection,
        fmt::format("it has Chorus {}, the coordinator {}", hello.version, wire::version()),
        LogLevel::warn);
  }
  if (hello.session != 0 || host_.succeeds) return greet_follower(token, connection, hello, now);
  if (comes_too_early(hello)) {
    const std::string why = fmt::format(
        "{} holds the place for an earlier joining of {} ranks, and has not joined again",
        this_process(), world_size_);
    log(LogLevel::debug, "", fmt::format("{} is to come later: {}", name_of(hello), why));
    add(connection, wire::Writer(wire::Type::later).text(why).share());
    connection.closing = true;
    return;
  }
  if (const auto why = why_refused(hello, now)) {
    // Where the job fails by it, its ranks say so.
    const bool runs = std::any_of(sessions_.begin(), sessions_.end(), [](const auto& session) {
      return !session->judge.join_failed();
    });
    return refuse(connection, *why, runs ? LogLevel::warn : LogLevel::info);
  }
  Session* session = session_for(hello.rank);
  if (session == nullptr) {
    return refuse(connection,
                  fmt::format("rank {} has joined with this id before; make a new id", hello.rank),
                  LogLevel::info);
  }
  if (const auto why = session->judge.admit(hello, now)) {
    return refuse(connection, *why, LogLevel::info);
  }
  let_in(token, connection, hello, *session);
}

/// A rank that lost its coordinator, at the place of the one that is to take over.
void Coordinator::Impl::greet_follower(std::uint64_t token, Connection& connection,
                                       const wire::Hello& hello, Time now) {
  const std::string who = name_of(hello);
  std::optional<std::string> why;
  if (hello.session == 0) {
    why = fmt::format(
        "{} comes with the id of a job that has begun: {} takes in those alone that were in it; "
        "start a job of its own",
        who, this_process());
  } else if (hello.session != host_.succeeds || hello.version != wire::version() ||
             hello.world_size != world_size_ || hello.rank < 0 || hello.rank >= world_size_) {
    why = fmt::format("{} lost the coordinator of another job than the one that {} takes over", who,
                      this_process());
  } else if (any_session_over_) {
    why = fmt::format("{} comes too late: the job has ended", who);
  } else {
    Session& session = sessions_.empty() ? open_session(now) : *sessions_.front();
    why = session.judge.follow(hello, now);
    if (!why) return let_in(token, connection, hello, session);
  }
  refuse(connection, *why, LogLevel::warn);
}

void Coordinator::Impl::let_in(std::uint64_t token, Connection& connection,
                               const wire::Hello& hello, Session& session) {
  connection.session = &session;
  connection.rank = hello.rank;
  connection.shares = net::sees_processes_of(hello.identity);
  connection.inbox.set_limit(wire::kMaxFromRank);
  session.connections[static_cast<std::size_t>(hello.rank)] = token;
  --num_strangers_;
  wire::Writer welcome(wire::Type::welcome);
  welcome.raw(wire::server_proof(id.secret, connection.nonce, hello.nonce));
  welcome.text(this_process());
  welcome.u8(host_.launcher ? 1 : 0);
  welcome.u8(hello.identity == net::process_identity() ? 1 : 0);
  add(connection, welcome.share());
}

}  // namespace chorus
