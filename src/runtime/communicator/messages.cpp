// Messages between two ranks: short ones at once through the pair's eager ring, where there is one,
// longer ones as jobs through slots.
#include <algorithm>
#include <cstring>

#include "base/copy.hpp"
#include "runtime/communicator/impl.hpp"
#include "runtime/control/coordinator/call_number.hpp"
#include "runtime/engine/call.hpp"
#include "runtime/engine/call_tag.hpp"

namespace chorus {
namespace {

const FlightRecorder::Label message_label = FlightRecorder::label("message");

// Looks for a message before a job is made that waits for it. The answer to a message that has just
// been sent comes within the first few.
constexpr int kLooks = 40;

std::byte* memory_of(const Call& message) {
  // What is sent is only ever read; one pointer type keeps the rest in one place.
  return static_cast<std::byte*>(message.kind == Call::Kind::send ? const_cast<void*>(message.input)
                                                                  : message.output);
}

}  // namespace

Communicator::Impl::PointToPoint& Communicator::Impl::point_to_point(const Call& call) {
  const bool sending = call.kind == Call::Kind::send;
  return point_to_point_[2 * static_cast<std::size_t>(call.peer) + (sending ? 1 : 0)];
}

std::size_t Communicator::Impl::resource_of(const Call& message) const {
  const auto peer = static_cast<std::size_t>(message.peer);
  return 1 + peer + (message.kind == Call::Kind::send ? 0 : place.members.size());
}

// Both ends describe the message alike.
std::uint64_t Communicator::Impl::number_of(const Call& message, std::uint64_t index) const {
  const bool sending = message.kind == Call::Kind::send;
  return MessageNumber{.from = sending ? place.rank : message.peer,
                       .to = sending ? message.peer : place.rank,
                       .index = static_cast<std::uint32_t>(index)}
      .pack();
}

bool Communicator::Impl::message_at_once(const Call& call, bool blocking) {
  if (static_cast<std::size_t>(call.peer) >= place.members.size()) return false;
  PointToPoint& with = point_to_point(call);
  if (with.eager_ring == nullptr || !with.is_short || with.count != call.count ||
      with.type != call.type || with.salt != 0 || (memory_of(call) == nullptr && call.count > 0)) {
    return false;
  }
  if (engine->failure() || aborted.load(std::memory_order_relaxed)) require_sound();
  try {
    if (!move_now(call, with, blocking)) return false;
  } catch (const LinkError& error) {
    engine->lost(error.peer(), error.what());
  }
  with.eager_ring->announce();
  return true;
}

// Nothing of what is checked here may be left to a job: one that waits has its own number.
bool Communicator::Impl::move_now(const Call& call, PointToPoint& with, bool blocking) {
  if (!engine->is_free(resource_of(call))) return false;
  const bool sending = call.kind == Call::Kind::send;
  EagerRing& eager_ring = *with.eager_ring;
  const std::size_t bytes = call.count * size_of(call.type);
  if (!sending) {
    const bool looks = blocking && engine->idle_now() && !engine->oversubscribed();
    for (int left = looks ? kLooks : 1; !eager_ring.has_message(); eager_ring.look_ahead(bytes)) {
      if (--left == 0) return false;
      WaitPolicy::pause();
    }
  }
  const std::uint64_t number = with.messages + 1;
  const std::uint32_t tag = next_tag(0, with.shape, number_of(call, number));
  if (sending) {
    if (!eager_ring.try_put({memory_of(call), bytes}, tag)) return false;
  } else {
    if (eager_ring.tag() != tag) return false;  // a job says so
    eager_ring.take({memory_of(call), bytes});
  }
  with.messages = number;
  flight.note(number, call, message_label);
  return true;
}

bool Communicator::Impl::has_message(Rank from) {
  const Call awaited{.kind = Call::Kind::recv, .peer = from};
  if (!engine->is_free(resource_of(awaited))) return false;
  try {
    Link& link = connections->link(from);
    if (EagerRing* const eager_ring = link.eager_ring();
        eager_ring != nullptr && eager_ring->has_message()) {
      return true;
    }
    if (link.peer_region().empty()) {  // no job is there to move it
      connections->progress();
      static_cast<void>(link.progress());
    }
  } catch (const LinkError& error) {
    engine->lost(error.peer(), error.what());
  }
  if (engine->in(from, message_channel()).has_message()) return true;
  engine->check_now_and_then();
  return false;
}

void Communicator::Impl::announce(const Call& call) {
  if (call.kind != Call::Kind::send) return;
  const PointToPoint& with = point_to_point(call);
  if (with.eager_ring != nullptr) with.eager_ring->announce();
}

void Communicator::Impl::launch_message(const Call& call, std::vector<Job*>& jobs) {
  launch_message(call, 0, 0, jobs);
}

void Communicator::Impl::launch_message(const Call& call, std::uint32_t salt, std::uint64_t part_of,
                                        std::vector<Job*>& jobs) {
  const bool sending = call.kind == Call::Kind::send;
  PointToPoint& with = point_to_point(call);
  if (with.eager_ring == nullptr) with.eager_ring = connections->link(call.peer).eager_ring();
  if (with.messages == 0 || with.count != call.count || with.type != call.type ||
      with.salt != salt) {
    Call as_sent = call;
    as_sent.kind = Call::Kind::send;
    as_sent.peer = sending ? call.peer : place.rank;
    with.shape = shape_of(as_sent, salt);
    with.count = call.count;
    with.type = call.type;
    with.salt = salt;
    with.is_short = call.count <= EagerRing::kMostBytes / size_of(call.type);
  }
  if (with.eager_ring != nullptr && with.is_short) {
    if (!move_now(call, with, false)) join_eager_queue(call, with, part_of, jobs);
    return;
  }
  Job& job = take_job(call, resource_of(call));
  const std::uint64_t number = ++with.messages;
  job.sequence = number_of(call, number);
  job.part_of = part_of;
  job.flight_record = flight.begin(number, call, message_label);
  if (!sending) job.watched = with.eager_ring;
  const Work work{.input = static_cast<const std::byte*>(call.input),
                  .output = static_cast<std::byte*>(call.output),
                  .count = call.count,
                  .type = call.type,
                  .tag = next_tag(0, with.shape, job.sequence),
                  .first_channel = message_channel()};
  if (!with.routine) {
    const auto n = static_cast<int>(place.members.size());
    with.routine = make_routine(message_program(n, place.rank, call.peer, sending), {}, 0);
  }
  job.execution.reset(with.routine, work, layout, *engine);
  engine->enqueue(job);
  jobs.push_back(&job);
}

// A message that cannot move now: with those of the same call or group that wait for the same peer,
// in one job.
void Communicator::Impl::join_eager_queue(const Call& call, PointToPoint& with,
                                          std::uint64_t part_of, std::vector<Job*>& jobs) {
  const std::size_t resource = resource_of(call);
  const std::uint64_t index = ++with.messages;
  const std::uint64_t number = number_of(call, index);
  const EagerQueue::Message message{.memory = memory_of(call),
                                    .count = call.count,
                                    .type = call.type,
                                    .tag = next_tag(0, with.shape, number),
                                    .number = number,
                                    .flight_record = flight.begin(index, call, message_label)};
  if (!engine->is_free(resource)) {
    Job& last = engine->last_of(resource);
    const bool together = std::find(jobs.rbegin(), jobs.rend(), &last) != jobs.rend();
    if (together && last.way == Job::Way::eager_ring && last.part_of == part_of) {
      last.eager_queue.add(message);
      return;
    }
  }
  Job& job = take_job(call, resource);
  job.way = Job::Way::eager_ring;
  job.part_of = part_of;
  const bool sending = call.kind == Call::Kind::send;
  job.eager_queue.reset(*with.eager_ring, call.peer,
                        sending ? nullptr : &engine->in(call.peer, message_channel()), flight);
  job.eager_queue.add(message);
  job.name_current();
  engine->enqueue(job);
  jobs.push_back(&job);
}

// A group of sends and receives, each rank beginning with its neighbour so that no one is flooded.
void Communicator::Impl::launch_all_to_all_v(const Call& call, std::vector<Job*>& jobs) {
  const auto n = place.members.size();
  const auto me = static_cast<std::size_t>(place.rank);
  const std::size_t element = size_of(call.type);
  const auto* input = static_cast<const std::byte*>(call.input);
  auto* output = static_cast<std::byte*>(call.output);
  constexpr std::uint32_t kSalt = 0x2a2a;  // does not match a plain send or recv
  // Counts as one of the collectives, so that a rank that makes another in its place shows.
  ++sequence;
  history_ = next_tag(history_, shape_of({.kind = call.kind, .type = call.type}, kSalt), sequence);
  for (std::size_t i = 1; i < n; ++i) {
    const std::size_t to = (me + i) % n;
    const std::size_t from = (me + n - i) % n;
    const Call out{.kind = Call::Kind::send,
                   .input = input + call.send_offsets[to] * element,
                   .count = call.send_counts[to],
                   .type = call.type,
                   .peer = static_cast<Rank>(to)};
    launch_message(out, kSalt, sequence, jobs);
    announce(out);
    launch_message({.kind = Call::Kind::recv,
                    .output = output + call.recv_offsets[from] * element,
                    .count = call.recv_counts[from],
                    .type = call.type,
                    .peer = static_cast<Rank>(from)},
                   kSalt, sequence, jobs);
  }
  if (call.send_counts[me] > 0) {
    copy_bytes(output + call.recv_offsets[me] * element, input + call.send_offsets[me] * element,
               call.send_counts[me] * element);
  }
}

}  // namespace chorus
