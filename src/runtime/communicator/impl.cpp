#include "runtime/communicator/impl.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>

#include "base/check.hpp"
#include "base/copy.hpp"
#include "base/counted.hpp"
#include "base/hash.hpp"
#include "base/text/log.hpp"
#include "collectives/reduce.hpp"
#include "model/schedule/contract.hpp"
#include "runtime/control/coordinator/call_number.hpp"
#include "runtime/engine/call.hpp"
#include "runtime/engine/call_tag.hpp"

namespace chorus {
namespace {

// Past collectives whose signatures go with a report of waiting.
constexpr std::size_t kReportedHistory = 8;
// Collectives of fewer bytes take as long as latencies and cores make them.
constexpr std::uint64_t kTellingBytes = 1 << 20;

// Whose time shows the network: every rank waits for bytes of every other.
bool shows_network(CollectiveKind kind) {
  return kind == CollectiveKind::all_reduce || kind == CollectiveKind::all_gather ||
         kind == CollectiveKind::reduce_scatter || kind == CollectiveKind::all_to_all;
}

}  // namespace

void keep_up(Connections& connections) {
  try {
    connections.progress();
  } catch (const LinkError&) {  // told where the link is used
  }
}

std::string who(const GroupPlace& place) {
  return fmt::format("[rank {}/{}]", place.rank, place.members.size());
}

std::string child_key(const std::string& parent, std::string_view suffix) {
  constexpr std::size_t kLongest = 64;
  std::string key = fmt::format("{}{}", parent, suffix);
  if (key.size() <= kLongest) return key;
  return fmt::format("{}~{:016x}", key.substr(0, key.find_first_of(".~")),
                     Fnv1a().bytes(key).value());
}

Communicator::Impl::~Impl() {
  end_planning();
  survey.reset();
  leave();
  const std::string failure = engine->failure().value_or(
      fmt::format("rank {}: the communicator ended before the call was complete", place.rank));
  while (open_requests != nullptr) open_requests->outlive(failure);
  if (!left_alone) {
    control->close_group(place.key);
    return;
  }
  engine.reset();
  const std::shared_ptr<Connections> kept = std::move(connections);
  control->keep_until_left(
      place.key, place.members, [kept] { keep_up(*kept); }, options.join_timeout_ms);
}

Table Communicator::Impl::exchange(const std::string& what, std::string_view as,
                                   std::span<const std::byte> mine) {
  using std::chrono::milliseconds;
  using std::chrono::steady_clock;
  ++sequence;
  const auto start = steady_clock::now();
  auto next_report = start + milliseconds(500);
  Lateness lateness(options.warn_after_ms);
  try {
    return meet(what, mine, [&] {
      const auto now = steady_clock::now();
      if (now < next_report) return;
      next_report += milliseconds(1'000);
      report_history();
      control->report_waiting(place.key, sequence, as, -1);
      if (!control->speaks(place.key, sequence)) return;
      const auto late_s = lateness.due(std::chrono::nanoseconds(now - start).count());
      if (!late_s) return;
      log(LogLevel::warn, who(place),
          control->with_missing(fmt::format("still waiting for the others in call {} {} after "
                                            "{:.3g} s",
                                            sequence, as, *late_s),
                                place.key, sequence));
    });
  } catch (const BootstrapError&) {
    if (control->verdict(place.key)) learn_failure();
    throw;
  }
}

Table Communicator::Impl::meet(const std::string& what, std::span<const std::byte> mine,
                               const std::function<void()>& meanwhile) {
  return control->exchange(place.key + "/" + what, place.members, mine, options.join_timeout_ms,
                           place.key, [&] {
                             keep_up(*connections);
                             if (meanwhile) meanwhile();
                           });
}

// Once a communicator has failed it has failed for every call, also for those that would find what
// they wait for.
void Communicator::Impl::learn_failure() noexcept {
  try {
    engine->check();
  } catch (const CollectiveError&) {  // kept by the engine
  }
}

void Communicator::Impl::require_own_process() const {
  if (of_this_process()) return;
  throw InputError(
      fmt::format("this process was forked from rank {} and cannot use its communicator: only the "
                  "process that joined may",
                  place.rank));
}

void Communicator::Impl::require_sound() {
  require_own_process();
  if (engine->failure()) throw CollectiveError(*engine->failure());
  if (end_announced) {
    throw InputError(
        fmt::format("rank {}: this rank has announced the end of its calls: announce_end() comes "
                    "after the last",
                    place.rank));
  }
  if (!aborted.load(std::memory_order_relaxed)) return;
  if (const auto verdict = control->await_verdict(place.key)) learn_failure();
  throw CollectiveError(engine->failure().value_or(
      fmt::format("rank {}: this rank has aborted the communicator", place.rank)));
}

void Communicator::Impl::announce_end() {
  if (end_announced) return;
  end_announced = true;
  // What repeats the last calls without another look must not do so now.
  forget_calls();
  for (PointToPoint& each : point_to_point_) each.is_short = false;
  report_history();
  control->report_waiting(place.key, sequence + 1, "the end of the communicator", -1);
  std::vector<Control::Conversed> all;
  for (std::size_t peer = 0; peer < place.members.size(); ++peer) {
    const std::uint64_t received = point_to_point_[2 * peer].messages;
    const std::uint64_t sent = point_to_point_[2 * peer + 1].messages;
    if (received + sent == 0) continue;
    all.push_back({.peer = static_cast<Rank>(peer),
                   .sent = static_cast<std::uint32_t>(sent & 0x7fffffff),
                   .received = static_cast<std::uint32_t>(received & 0x7fffffff)});
  }
  control->report_ending(place.key, all);
}

// Leaving is collective: a socket that closes while a peer still reads from it could take messages
// with it. A rank that leaves because something was thrown tells the others, who would wait in
// vain.
void Communicator::Impl::leave() noexcept {
  try {
    if (engine->failure() || aborted) return;
    if (!group_calls.empty()) {
      control->abort(place.key,
                     fmt::format("left with {} of a group that was not ended",
                                 counted(static_cast<long long>(group_calls.size()), "call")));
      throw CollectiveError(
          "the communicator ends before group_end(): the calls of the group "
          "were never started");
    }
    if (std::uncaught_exceptions() > 0) {
      // Mostly that of another communicator, whose failure is news to members of this one.
      const auto why = control->reason_to_leave();
      control->abort(place.key,
                     why ? "left after a failure: " + *why : "left because of an exception");
      return;
    }
    // First: this rank may itself wait for messages of others that end.
    announce_end();
    // Calls that nobody waited for still own user memory. Those that are queued run in their turn.
    const auto next = [&] {
      return std::ranges::find_if(all_jobs_, [](const auto& job) { return job->running; });
    };
    for (auto job = next(); job != all_jobs_.end(); job = next()) {
      engine->drive_until(**job, [&] { return (*job)->complete; });
    }
    try {
      left_alone =
          !control->leave_group(place.key, place.members, [this] { keep_up(*connections); });
    } catch (const BootstrapError& error) {
      if (control->verdict(place.key)) throw;
      throw CollectiveError(fmt::format(
          "the communicator '{}' was not ended by all of its ranks: {}", place.key, error.what()));
    }
    if (const auto verdict = control->verdict(place.key)) throw CollectiveError(*verdict);
  } catch (const std::exception& error) {
    log(LogLevel::error, who(place), error.what());  // too late to throw it
  }
}

// Calls that did not match may both have completed (two roots that broadcast), and show only later.
void Communicator::Impl::report_history() {
  for (const auto& [number, text] : flight.last_collectives(kReportedHistory)) {
    control->report_waiting(place.key, number, text, -1);
  }
}

void Communicator::Impl::launch(const Call& call, std::vector<Job*>& jobs) {
  check_call(call, place.rank, static_cast<int>(place.members.size()));
  require_sound();
  launch_judged(call, jobs);
}

void Communicator::Impl::launch_judged(const Call& call, std::vector<Job*>& jobs) {
  try {
    switch (call.kind) {
      case Call::Kind::all_to_all_v:
        launch_all_to_all_v(call, jobs);
        break;
      case Call::Kind::send:
      case Call::Kind::recv:
        launch_message(call, jobs);
        break;
      default:
        jobs.push_back(&prepare_collective(call));
        engine->enqueue(*jobs.back());
    }
  } catch (const LinkError& error) {  // a link is made with the first call that needs it
    engine->lost(error.peer(), error.what());
  } catch (const std::bad_alloc&) {
    engine->out_of_memory(signature(call));
  }
}

void Communicator::Impl::run_group() {
  // Both are left empty also by a call that throws, and keep their memory by one that does not.
  std::vector<GroupedCall> calls = std::exchange(group_calls, {});
  std::vector<Job*> jobs = std::exchange(group_jobs_, {});
  // Judge all before starting any: a bad argument has no effect on the group.
  for (const GroupedCall& call : calls) {
    check_call(call.call, place.rank, static_cast<int>(place.members.size()));
  }
  require_sound();
  for (const GroupedCall& call : calls) launch_judged(call.call, jobs);
  for (const GroupedCall& call : calls) announce(call.call);
  finish(jobs);
  calls.clear();
  group_calls = std::move(calls);
  group_jobs_ = std::move(jobs);
}

// The frequent case: nothing else is under way, so nothing has to be queued.
void Communicator::Impl::run(const Call& call) {
  if (call.kind > Call::Kind::barrier || !engine->idle_now()) {
    if (is_message(call.kind) && message_at_once(call, true)) return;
    launch(call, blocking_jobs);
    announce(call);
    finish(blocking_jobs);
    return;
  }
  if (run_again(call)) return;
  check_call(call, place.rank, static_cast<int>(place.members.size()));
  require_sound();
  Job* job = nullptr;
  try {
    job = &prepare_collective(call);
  } catch (const LinkError& error) {  // a link is made with the first call that needs it
    engine->lost(error.peer(), error.what());
  } catch (const std::bad_alloc&) {
    engine->out_of_memory(signature(call));
  }
  if (job->way == Job::Way::direct) {
    engine->run_alone(*job);
    if (!keep_for_next(*job)) free_jobs_.push_back(job);
    return;
  }
  engine->enqueue(*job);
  blocking_jobs.push_back(job);
  finish(blocking_jobs);
}

Job& Communicator::Impl::prepare_collective(const Call& call) {
  if (planner) {
    follow_planner();
  } else if (survey && place.rank != 0) {
    hear_of_change();
  }
  const auto n = static_cast<int>(place.members.size());
  const Collective collective = collective_of(call);
  const CollectiveKind kind = collective.kind;
  const std::uint64_t bytes = size_bytes_of(call, n);
  const Selector::Choice& choice = schedule_name.empty()
                                       ? selector->choose(collective, bytes)
                                       : selector->choose(collective, schedule_name);

  Job& job = take_job(call, 0);
  job.sequence = ++sequence;
  job.flight_record = flight.begin(job.sequence, call, FlightRecorder::label(choice.name));
  job.drifts = drift && bytes >= kTellingBytes && shows_network(kind);
  job.timed = job.drifts || tells_calls;
  if (job.timed) {
    job.predicted_s = selector->predicted_s(kind, bytes);
    job.begun = std::chrono::steady_clock::now();
    if (tells_calls) tell_begin(job, choice.name, bytes);
  }
  history_ = next_tag(history_, shape_of(call, choice.routine->hash), job.sequence);
  const Reduction reduction = reduction_of(call);
  Work work{.input = static_cast<const std::byte*>(call.input),
            .output = static_cast<std::byte*>(call.output),
            .count = call.count,
            .type = call.type,
            .op = reduction.op,
            .divisor = reduction.op == ReduceOp::avg ? n : 1,
            .tag = history_,
            .instances = instances};
  if (kind == CollectiveKind::barrier) work.count = 0;
  prepare_input(job, work, call, static_cast<std::size_t>(input_blocks(collective, n, place.rank)),
                static_cast<std::size_t>(output_blocks(collective, n, place.rank)));
  SharedWindow* const shared_window = connections->shared_window();
  if (choice.routine->direct != nullptr && shared_window != nullptr &&
      DirectExecution::fits(*choice.routine->direct, work, *shared_window)) {
    job.way = Job::Way::direct;
    job.direct.reset(choice.routine, work, *shared_window, shared_calls_);
  } else {
    if (choice.routine->held_to_steps && schedule_name.empty()) {
      // As many steps more as pass while messages travel, or they would wait for each other.
      const double share = selector->latency_share(kind, bytes);
      work.run_ahead = kLeastRunAhead + static_cast<int>(share * choice.routine->steps);
    }
    job.execution.reset(choice.routine, work, layout, *engine);
  }
  return job;
}

std::string Communicator::Impl::explain_buffers(const Call& call) const {
  SharedWindow* const shared_window = connections->shared_window();
  if (shared_window == nullptr || call.kind == Call::Kind::barrier) return {};
  const Selector::Choice& choice = selector->choose(
      collective_of(call), size_bytes_of(call, static_cast<int>(place.members.size())));
  const Work work{.count = call.count, .type = call.type};
  const DirectRoutine* const direct = choice.routine->direct.get();
  if (direct == nullptr || !DirectExecution::fits(*direct, work, *shared_window)) return {};
  if (shared_window->is_one_process()) return "  buffers are read where they are: one process\n";
  const auto by_kernel = DirectExecution::reads_by_kernel(*choice.routine, work, shared_calls_);
  return fmt::format(
      "  ordinary buffers {} (host {}{})\n",
      by_kernel.now ? "are read by the kernel: one copy" : "go through slots: two copies",
      shared_machine->rates.is_measured() ? "measured: chorus probe --host --cached"
                                          : "not measured: figures are assumed",
      by_kernel.now == by_kernel.predicted ? "" : "; calls have shown since that it is faster");
}

// Input that must not be read as it is: scaled, exchanged in place, or broadcast out of place.
void Communicator::Impl::prepare_input(Job& job, Work& work, const Call& call,
                                       std::size_t blocks_in, std::size_t blocks_out) {
  const std::size_t bytes = blocks_in * work.count * size_of(work.type);
  if (call.kind == Call::Kind::broadcast) {
    if (call.peer == place.rank && work.input != work.output && bytes > 0) {
      copy_bytes(work.output, work.input, bytes);
    }
    work.input = work.output;
    return;
  }
  const double factor = reduction_of(call).scale;
  const bool scaled = factor != 1.0;
  const bool exchanged_in_place = call.kind == Call::Kind::all_to_all && work.input == work.output;
  if (!scaled && !exchanged_in_place) return;
  std::byte* copy = work.output;
  if (blocks_in != blocks_out || exchanged_in_place) {
    job.copy.resize(bytes);
    copy = job.copy.data();
  }
  if (scaled) {
    scale(copy, work.input, blocks_in * work.count, work.type, factor);
  } else if (bytes > 0) {
    copy_bytes(copy, work.input, bytes);
  }
  work.input = copy;
}

Job& Communicator::Impl::take_job(const Call& call, std::size_t resource) {
  if (free_jobs_.empty()) {
    all_jobs_.push_back(std::make_unique<Job>());
    free_jobs_.push_back(all_jobs_.back().get());
  }
  Job& job = *free_jobs_.back();
  free_jobs_.pop_back();
  job.call = call;
  job.self = place.rank;
  job.resource = resource;
  job.part_of = 0;
  job.running = job.complete = false;
  job.way = Job::Way::slots;
  job.watched = nullptr;
  job.timed = job.drifts = false;
  return job;
}

void Communicator::Impl::finish(std::vector<Job*>& jobs) {
  for (const Job* job : jobs) {
    engine->drive_until(*job, [&] { return job->complete; });
  }
  give_back(jobs);
}

bool Communicator::Impl::test(std::vector<Job*>& jobs, bool give_way) {
  const bool moved = engine->progress();
  if (collect(jobs)) return true;
  if (moved) {
    engine->moved_by_polling();
    return false;
  }
  if (give_way) engine->give_way();
  engine->check_now_and_then();
  return false;
}

bool Communicator::Impl::collect(std::vector<Job*>& jobs) {
  const bool complete =
      std::all_of(jobs.begin(), jobs.end(), [](const Job* job) { return job->complete; });
  if (complete) give_back(jobs);
  return complete;
}

Traffic Communicator::Impl::traffic() const {
  Traffic traffic = engine->traffic();
  traffic.direct_bytes = shared_calls_.moved_bytes;
  return traffic;
}

void Communicator::Impl::give_back(std::vector<Job*>& jobs) {
  free_jobs_.insert(free_jobs_.end(), jobs.begin(), jobs.end());
  jobs.clear();
}

}  // namespace chorus
