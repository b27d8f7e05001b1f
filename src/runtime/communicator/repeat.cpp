// Calls over shared memory that were made before. Training loops and benchmarks make the same call
// again and again; one of a few bytes takes less time than finding out what runs it.
#include <cstring>

#include "base/copy.hpp"
#include "runtime/communicator/impl.hpp"
#include "runtime/engine/call.hpp"
#include "runtime/engine/call_tag.hpp"

namespace chorus {
namespace {

// But for where memory lies; that is judged anew.
bool alike(const Call& a, const Call& b) {
  return a.kind == b.kind && a.count == b.count && a.type == b.type && a.peer == b.peer &&
         a.reduction == b.reduction;
}

// Its input is read as it is, or as a copy in the output.
bool needs_no_memory(const Call& call) {
  return reduction_of(call).scale == 1.0 &&
         (call.kind != Call::Kind::all_to_all || call.input != call.output);
}

}  // namespace

Communicator::Impl::Repeated* Communicator::Impl::repeated(const Call& call) {
  for (Repeated& known : repeated_) {
    if (known.count == call.count && known.kind == call.kind && known.job != nullptr &&
        alike(known.job->call, call)) {
      return &known;
    }
  }
  return nullptr;
}

bool Communicator::Impl::run_again(const Call& call) {
  const Repeated* const known = schedule_name.empty() ? repeated(call) : nullptr;
  if (known == nullptr) return false;
  Job& job = *known->job;
  if (call.input != job.call.input || call.output != job.call.output) {
    if (!needs_no_memory(call)) return false;
    check_call(call, place.rank, static_cast<int>(place.members.size()));
    job.call.input = call.input;
    job.call.output = call.output;
  }
  if (aborted.load(std::memory_order_relaxed)) require_sound();
  const auto* input = static_cast<const std::byte*>(call.input);
  auto* const output = static_cast<std::byte*>(call.output);
  if (call.kind == Call::Kind::broadcast) {
    if (call.peer == place.rank && input != output && call.count > 0) {
      copy_bytes(output, input, call.count * size_of(call.type));
    }
    input = output;
  }
  job.sequence = ++sequence;
  job.flight_record = flight.begin(job.sequence, call, known->label);
  history_ = next_tag(history_, known->shape, job.sequence);
  job.complete = false;
  job.direct.repeat(input, output, history_);
  engine->run_alone(job);
  return true;
}

// True if the job stays with the call that it ran.
bool Communicator::Impl::keep_for_next(Job& job) {
  if (!needs_no_memory(job.call) || job.timed || !schedule_name.empty() || planner) return false;
  const Selector::Choice& choice = selector->choose(
      collective_of(job.call), size_bytes_of(job.call, static_cast<int>(place.members.size())));
  Repeated& known = repeated_[oldest_repeated_++ % repeated_.size()];
  if (known.job != nullptr) free_jobs_.push_back(known.job);
  known = {.job = &job,
           .kind = job.call.kind,
           .count = job.call.count,
           .shape = shape_of(job.call, choice.routine->hash),
           .label = FlightRecorder::label(choice.name)};
  return true;
}

// Other schedules may serve them from now on.
void Communicator::Impl::forget_calls() {
  for (Repeated& known : repeated_) {
    if (known.job != nullptr) free_jobs_.push_back(known.job);
    known = {};
  }
}

}  // namespace chorus
