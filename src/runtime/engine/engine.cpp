#include "runtime/engine/engine.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/text/log.hpp"
#include "chorus/error.hpp"
#include "runtime/control/coordinator/call_number.hpp"
#include "runtime/engine/call.hpp"
#include "runtime/engine/flight_recorder.hpp"

namespace chorus {
namespace {

// After this long without progress a rank tells the coordinator what it waits for.
constexpr std::int64_t kReportAfterNs = 500'000'000;
constexpr std::int64_t kReportEveryNs = 1'000'000'000;
// Idle rounds between looks at the clock.
constexpr std::uint32_t kRoundsPerLook = 32;

// The call that a message is part of, as all ranks must have made it.
std::string describe_whole(const Job& job) {
  return signature({.kind = Call::Kind::all_to_all_v, .type = job.call.type});
}

std::string in_call(const Job& job) {
  if (job.part_of == 0) return job.describe();
  return fmt::format("call {} {}, {}", job.part_of, describe_whole(job), job.describe());
}

}  // namespace

Engine::Engine(Control& control, Connections& connections, const GroupPlace& place,
               const Options& options, const SlotLayout& layout)
    : control_(control),
      connections_(connections),
      place_(place),
      options_(options),
      layout_(layout),
      wait_(connections, place.rank, options,
            place.oversubscribed ||
                connections.members()[static_cast<std::size_t>(place.rank)].oversubscribed),
      lateness_(options.warn_after_ms) {
  const auto& members = connections.members();
  const std::size_t ports = members.size() * static_cast<std::size_t>(layout.data_channels);
  outs_.resize(ports);
  ins_.resize(ports);
  // The first call that ends in the look before a sleep would be the one that allocates.
  leaving_.reserve(4);
}

OutPort& Engine::out(Rank peer, int channel) {
  auto& port = outs_[static_cast<std::size_t>(peer) * layout_.data_channels + channel];
  if (!port) {
    port = std::make_unique<OutPort>();
    port->link = &connections_.link(peer);
    port->channel = channel;
    port->piggybacked_credits = port->link->piggybacked_credits();
  }
  return *port;
}

InPort& Engine::in(Rank peer, int channel) {
  auto& port = ins_[static_cast<std::size_t>(peer) * layout_.data_channels + channel];
  if (!port) {
    port = std::make_unique<InPort>();
    port->link = &connections_.link(peer);
    port->channel = channel;
    port->piggybacked_credits = port->link->piggybacked_credits();
    port->posted_receives = port->link->posted_receives();
    in_use_.push_back(port.get());
  }
  return *port;
}

void Engine::enqueue(Job& job) {
  if (queues_.size() <= job.resource) queues_.resize(job.resource + 1);
  auto& queue = queues_[job.resource];
  queue.push_back(&job);
  if (queue.size() == 1) {
    run(job);
  } else if (queue.size() == 2) {
    tell_links(*queue.front(), true);
  }
}

// Whether what `job` puts is one of several puts in a row: of its own, or of messages behind it.
void Engine::tell_links(const Job& job, bool followed) {
  if (job.way != Job::Way::slots || job.call.kind == Call::Kind::recv) return;
  const bool several = job.execution.num_tiles() > 1 || (followed && is_message(job.call.kind));
  for (Link* link : job.execution.links()) link->in_a_row(several);
}

void Engine::complete(Job& job) {
  job.complete = true;
  job.running = false;
  if (gate != nullptr && !is_message(job.call.kind)) gate->completed();
  if (on_complete) on_complete(job);
}

// The next job of its resource begins: what it puts can leave with the last of this one.
void Engine::free_resource(const Job& job) {
  if (queues_.size() <= job.resource || queues_[job.resource].empty()) return;  // it runs alone
  auto& queue = queues_[job.resource];
  queue.erase(queue.begin());
  if (!queue.empty()) run(*queue.front());
}

void Engine::run(Job& job) {
  if (running_.empty() && leaving_.empty()) begun_ = true;
  job.running = true;
  running_.push_back(&job);
  if (job.way != Job::Way::slots) return;
  for (Link* link : job.execution.links()) {
    if (link->peer_region().empty() &&
        std::find(busy_links_.begin(), busy_links_.end(), link) == busy_links_.end()) {
      busy_links_.push_back(link);
    }
  }
  tell_links(job, queues_.size() > job.resource && queues_[job.resource].size() > 1);
  job.execution.begin();
}

void Engine::run_alone(Job& job) {
  // What idle(), sleep() and a failure look at; spinning needs none of it.
  job.running = true;
  running_.push_back(&job);
  waited_ = false;
  try {
    while (!job.finished()) {
      if (job.step()) {
        idle_rounds_ = 0;
      } else if (job.mismatch() >= 0) {
        mismatched(job);
      } else {
        const Pending only{this, &job};
        idle({&only, 1});
      }
      if (job.complete) break;  // while it was about to sleep
    }
  } catch (const LinkError& error) {
    lost(error.peer(), error.what());
  } catch (const std::bad_alloc&) {
    out_of_memory(running_.empty() ? "its links" : running_.front()->describe());
  }
  idle_rounds_ = 0;
  if (job.complete) return;
  running_.clear();
  job.complete = true;
  job.running = false;
  if (on_complete) on_complete(job);
  waited_ = true;
}

bool Engine::progress() {
  if (failure_) throw CollectiveError(*failure_);
  bool moved = false;
  try {
    bool flushed = true;
    // What has just begun sends before it looks for what has come: peers may wait for it.
    if (!std::exchange(begun_, false)) {
      for (Link* link : busy_links_) flushed = link->progress() && flushed;
    }
    for (std::size_t i = 0; i < running_.size();) {
      Job& job = *running_[i];
      moved = job.step() || moved;
      if (job.mismatch() >= 0) mismatched(job);
      if (!job.finished()) {
        ++i;
        continue;
      }
      moved = true;
      leaving_.push_back(&job);
      running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
      free_resource(job);
    }
    // Messages and credits that are still queued here would hold up a peer while this rank
    // computes.
    if (!leaving_.empty()) {
      if (settled(flushed)) {
        for (Job* job : leaving_) complete(*job);
        leaving_.clear();
        moved = true;
      }
    } else if (moved) {
      for (Link* link : busy_links_) static_cast<void>(link->flush());
    }
    if (running_.empty() && leaving_.empty()) busy_links_.clear();
  } catch (const LinkError& error) {
    lost(error.peer(), error.what());
  } catch (const std::bad_alloc&) {
    out_of_memory(running_.empty() ? "its links" : running_.front()->describe());
  }
  if (moved && gate != nullptr) gate->moved();
  return moved;
}

// True when nothing that peers wait for is left in this process.
bool Engine::settled(bool flushed) {
  if (busy_links_.empty()) return true;
  for (InPort* port : in_use_) {
    if (port->owes_credit(layout_)) port->credit(layout_);
    if (port->owes_credit(layout_)) return false;
  }
  bool left = true;
  for (Link* link : busy_links_) left = link->flush() && left;
  if (!left || flushed) return left;
  flushed = true;
  for (Link* link : busy_links_) flushed = link->progress() && flushed;
  return flushed;
}

void Engine::idle(std::span<const Pending> all) {
  if (++idle_rounds_ == 1) wait_.begin();
  if (idle_rounds_ % kRoundsPerLook != 0) return wait_.pass();
  const std::int64_t now = steady_ns();
  waited_ = true;
  if (idle_rounds_ == kRoundsPerLook) {
    idle_since_ns_ = now;
    next_report_ns_ = now + kReportAfterNs;
  }
  for (const Pending& pending : all) pending.engine->look_around();
  if (!wait_.is_to_sleep(now, now - idle_since_ns_)) return;
  sleep(all);
  check_stall(all);
  wait_.after_sleep(steady_ns());
}

// What others may wait for while this rank does.
void Engine::look_around() {
  for (InPort* port : in_use_) {
    if (!port->owes_credit(layout_)) continue;
    port->credit(layout_);
    static_cast<void>(port->link->flush());
  }
  if (connections_.shared_window() != nullptr) connections_.shared_window()->wake_sleepers();
  if (busy_links_.empty()) return;
  try {
    connections_.progress();
  } catch (const LinkError& error) {
    lost(error.peer(), error.what());
  }
}

void Engine::sleep(std::span<const Pending> all) {
  const auto for_each_transport = [&](auto what) {
    for (const Pending& pending : all) {
      for (const auto& transport : pending.engine->connections_.transports()) what(*transport);
    }
  };
  const auto wake = [&] { for_each_transport([](Transport& transport) { transport.woke(); }); };
  wait_.before_sleep();
  for_each_transport([](Transport& transport) { transport.prepare_to_sleep(); });
  try {
    // Nothing may slip between the announcement and the poll. Either way the next round runs
    // soon, so idle_rounds_ is left as it is unless something moved.
    bool moved = false;
    for (const Pending& pending : all) {
      moved = pending.engine->progress() || pending.job->complete || moved;
    }
    if (moved) {
      idle_rounds_ = 0;
      wake();
      return;
    }
  } catch (...) {
    wake();
    throw;
  }
  wake_fds_.clear();
  for_each_transport([&](const Transport& transport) { transport.append_wake_fds(wake_fds_); });
  for (const Pending& pending : all) {
    wake_fds_.push_back(wake_fd(pending.engine->control_.fd()));
  }
  ::poll(wake_fds_.data(), wake_fds_.size(), 100);
  wake();
  for (const Pending& pending : all) {
    try {
      pending.engine->connections_.progress();
    } catch (const LinkError& error) {
      pending.engine->lost(error.peer(), error.what());
    }
  }
}

// No progress for a while: is there a verdict, has a peer called something else, is time up?
void Engine::check_stall(std::span<const Pending> all) {
  if (idle_rounds_ == 0) return;
  for (const Pending& pending : all) {
    if (pending.engine->check_while_waiting()) idle_rounds_ = 0;
  }
  if (idle_rounds_ == 0) return;
  const Job& job = *all.front().job;
  const std::int64_t now = steady_ns();
  if (now >= next_report_ns_) {
    next_report_ns_ = now + kReportEveryNs;
    for (const Pending& pending : all) {
      pending.engine->report(*pending.job, pending.job->waiting().peer);
    }
  }
  mention(job, now - idle_since_ns_);
  if (now - idle_since_ns_ > std::int64_t{options_.timeout_ms} * 1'000'000) {
    const std::string reason =
        control_.with_missing(fmt::format("{}: nothing for {} ms (CHORUS_TIMEOUT_MS)",
                                          describe_waiting(job), options_.timeout_ms),
                              place_.key, job.part_of == 0 ? job.sequence : job.part_of);
    control_.abort(place_.key, reason);
    fail(control_.await_verdict(place_.key).value_or(reason));
  }
}

// Long before time is up, and by one of all who wait.
void Engine::mention(const Job& job, std::int64_t waited_ns) {
  const std::uint64_t call = job.part_of == 0 ? job.sequence : job.part_of;
  if (!lateness_.may_be_due(waited_ns) || !control_.speaks(place_.key, call)) return;
  const auto late_s = lateness_.due(waited_ns);
  if (!late_s) return;
  const Rank peer = job.waiting().peer;
  const std::string whom = peer < 0 ? "its own messages to leave" : fmt::format("rank {}", peer);
  const std::string where = MessageNumber::is_message(job.sequence)
                                ? in_call(job)
                                : fmt::format("call {} {}", job.sequence, job.describe());
  log(LogLevel::warn, fmt::format("[rank {}/{}]", place_.rank, connections_.members().size()),
      control_.with_missing(
          fmt::format("still waiting for {} in {} after {:.3g} s", whom, where, *late_s),
          place_.key, call));
}

void Engine::report(const Job& job, Rank waiting_for) {
  if (on_report) on_report();
  control_.report_waiting(place_.key, job.sequence, job.describe(), waiting_for);
  if (job.part_of != 0) {
    control_.report_waiting(place_.key, job.part_of, describe_whole(job), waiting_for);
  }
}

void Engine::check() {
  if (failure_) throw CollectiveError(*failure_);
  control_.poll();
  if (const auto verdict = control_.verdict(place_.key)) fail(*verdict);
}

// A peer may have sent all that is waited for before it failed, or left: that is for the next call
// to say. What it sent is there before the verdict is.
bool Engine::check_while_waiting() {
  if (failure_) throw CollectiveError(*failure_);
  control_.poll();
  const auto verdict = control_.verdict(place_.key);
  if (!verdict) return false;
  if (!progress()) fail(*verdict);
  return true;
}

void Engine::turn(std::span<const Pending> all) {
  bool moved = false;
  for (const Pending& pending : all) moved = pending.engine->progress() || moved;
  Engine& first = *all.front().engine;
  if (!moved) return first.idle(all);
  for (const Pending& pending : all) pending.engine->idle_rounds_ = 0;
}

Traffic Engine::traffic() const {
  Traffic sum;
  for (const auto& port : outs_) {
    if (!port) continue;
    sum.messages += port->sent;
    sum.message_bytes += port->sent_bytes;
  }
  for (const InPort* port : in_use_) sum.messages_taken += port->taken;
  for (const auto& link : connections_.links()) {
    const EagerRing* const eager_ring = link ? link->eager_ring() : nullptr;
    if (eager_ring == nullptr) continue;
    sum.messages += eager_ring->sent();
    sum.message_bytes += eager_ring->sent_bytes();
    sum.messages_taken += eager_ring->taken();
  }
  return sum;
}

void Engine::check_now_and_then() {
  const std::int64_t now = steady_ns();
  if (now < next_check_ns_) return;
  next_check_ns_ = now + 2'000'000;
  if (check_while_waiting()) return;
  report_polled(now);
}

// Who polls may have a message open with every rank: a few at a time, in turns.
void Engine::report_polled(std::int64_t now) {
  constexpr std::size_t kAtOnce = 8;
  if (next_polled_report_ns_ == 0) {
    next_polled_report_ns_ = now + kReportAfterNs;
    polled_since_ns_ = now;
  }
  if (now < next_polled_report_ns_) return;
  if (!running_.empty()) mention(*running_.front(), now - polled_since_ns_);
  next_polled_report_ns_ = now + kReportEveryNs;
  for (std::size_t i = 0; i < std::min(kAtOnce, running_.size()); ++i) {
    const Job& job = *running_[polled_reports_++ % running_.size()];
    report(job, job.waiting().peer);
  }
}

void Engine::lost(Rank peer, const std::string& why) {
  if (peer >= 0) {
    control_.report_lost(place_.key, peer, why);
  } else {  // this rank's own sockets or memory
    control_.abort(place_.key, why);
  }
  fail(control_.await_verdict(place_.key).value_or(why));
}

void Engine::out_of_memory(const std::string& what) {
  lost(-1, fmt::format("out of memory: {} needs more than its buffers", what));
}

void Engine::mismatched(const Job& job) {
  const Rank peer = job.mismatch();
  report(job, peer);
  if (const auto verdict = control_.await_verdict(place_.key)) fail(*verdict);
  const std::string reason = fmt::format(
      "rank {} is in {}, but the next message of rank {} {}belongs to another call", place_.rank,
      in_call(job), peer,
      MessageNumber::is_message(job.sequence) ? "is of another count or type, or " : "");
  control_.abort(place_.key, reason);
  fail(reason);
}

void Engine::fail(const std::string& reason) {
  if (!failure_) {
    const std::string waiting = running_.empty() ? "" : describe_waiting(*running_.front());
    failure_ = fmt::format("rank {}: {}", place_.rank, reason);
    // What this rank offered, or receives into, is the caller's again once this has thrown.
    if (connections_.shared_window() != nullptr) connections_.shared_window()->withdraw();
    for (const auto& link : connections_.links()) {
      if (link && link->posted_receives() != nullptr) link->posted_receives()->withdraw();
    }
    if (on_failure) on_failure(*failure_, waiting);
  }
  throw CollectiveError(*failure_);
}

bool Job::step_eager_queue() {
  if (!eager_queue.step()) return false;
  if (!eager_queue.finished()) name_current();
  return true;
}

void Job::name_current() {
  const EagerQueue::Message& message = eager_queue.current();
  sequence = message.number;
  call.count = message.count;
  call.type = message.type;
}

// After a step that found nothing. A short message in place of the longer one that is awaited: the
// sender begins none before the last one is put whole, so this one's would be there.
bool Job::step_where_short() {
  if (watched == nullptr || execution.finished() || !watched->has_message()) return false;
  if (execution.step()) return true;
  comes_short_ = true;
  return false;
}

std::string Job::describe() const {
  if (call.kind != Call::Kind::send && call.kind != Call::Kind::recv) return signature(call);
  const bool sending = call.kind == Call::Kind::send;
  return fmt::format("message(count {}, {}) from rank {} to rank {}", call.count,
                     name_of(call.type), sending ? self : call.peer, sending ? call.peer : self);
}

std::string Engine::describe_waiting(const Job& job) const {
  const Waiting waiting = job.waiting();
  const std::string call = MessageNumber::is_message(job.sequence)
                               ? fmt::format("{}, number {} between them", in_call(job),
                                             MessageNumber::unpack(job.sequence).index)
                               : fmt::format("call {} {}", job.sequence, job.describe());
  if (waiting.peer < 0) return fmt::format("{}: waiting for its own messages to leave", call);
  return fmt::format("{}: step {} of {}, channel {}: waiting for rank {} to {}", call,
                     waiting.instruction, waiting.of, waiting.channel, waiting.peer,
                     waiting.to_send ? "take a message" : "send");
}

}  // namespace chorus
