#include "drivers/gpu_driver.hpp"

#include <cstdint>
#include <span>
#include <utility>

namespace chorus_torch {
namespace {

using Kind = chorus::Call::Kind;

// All ranks learn together whether all have a GPU: some would wait for the others in vain.
void require_gpus(chorus::Communicator& world, int gpu) {
  const auto why_not = chorus::DeviceCommunicator::why_not(gpu);
  std::int32_t first_without = why_not ? world.rank() : world.world_size();
  world.all_reduce(std::span(&first_without, 1), chorus::ReduceOp::min);
  if (first_without == world.world_size()) return;
  throw chorus::InputError(why_not ? "CUDA tensors cannot be sent from rank " +
                                         std::to_string(world.rank()) + ": " + *why_not
                                   : "CUDA tensors cannot be sent: rank " +
                                         std::to_string(first_without) +
                                         " has no GPU that Chorus can use, and says why");
}

}  // namespace

GpuDriver::GpuDriver(chorus::Communicator& world, int gpu, const MakeStream& make_stream,
                     Amend amend)
    : gpu_(gpu), amend_(std::move(amend)) {
  require_gpus(world, gpu);
  communicator_ = world.split(0);
  for (Lane& lane : lanes_) {
    lane.communicator = std::make_unique<chorus::DeviceCommunicator>(*communicator_, gpu);
    lane.stream = make_stream();
  }
}

GpuDriver::~GpuDriver() {
  try {
    end_batch();
  } catch (const chorus::Error&) {
    // It failed the group, which is all that can be said by now.
  }
}

GpuDriver::Entered::~Entered() {
  for (const auto& task : *this) task->uses = {};
}

void GpuDriver::submit(std::shared_ptr<GpuTask> task) {
  Entered entered;
  const std::lock_guard lock(mutex_);
  if (const std::string why = failure(); !why.empty()) throw chorus::CollectiveError(why);
  task->begin.emplace(gpu_, task->caller);
  Lane& lane = lanes_[task->message ? 1 : 0];
  if (batching_) {
    lane.batch.push_back(std::move(task));
  } else {
    enqueue(lane, {std::move(task)}, entered);
  }
}

void GpuDriver::begin_batch() {
  const std::lock_guard lock(mutex_);
  batching_ = true;
}

void GpuDriver::end_batch() {
  Entered entered;
  const std::lock_guard lock(mutex_);
  batching_ = false;
  flush(entered);
}

void GpuDriver::flush(Entered& entered) {
  for (Lane& lane : lanes_) {
    const auto batch = std::exchange(lane.batch, {});
    if (!batch.empty()) enqueue(lane, batch, entered);
  }
}

std::shared_ptr<const chorus::DeviceMark> GpuDriver::end_of(const GpuTask& task) {
  Entered entered;
  const std::lock_guard lock(mutex_);
  if (!task.end) flush(entered);
  if (!task.end) throw chorus::CollectiveError(amend_(task.task->name + " was not started"));
  return task.end;
}

// An all_to_all_v is a group of messages on GPUs. Those of nothing are not left out: a rank that
// expects more than it is sent shall hear of it. Tensors are known to be on the GPU
// (Backend::place).
void GpuDriver::expand(const Task& task, void* stream,
                       std::vector<chorus::DeviceCall>& calls) const {
  for (const chorus::Call& call : task.calls) {
    if (call.kind != Kind::all_to_all_v) {
      calls.push_back({.call = call, .stream = stream, .checked = true});
      continue;
    }
    const std::size_t bytes = chorus::size_of(call.type);
    const auto* const from = static_cast<const std::byte*>(call.input);
    auto* const to = static_cast<std::byte*>(call.output);
    const int me = communicator_->rank();
    for (int r = 0; r < communicator_->world_size(); ++r) {
      const auto i = static_cast<std::size_t>(r);
      const std::byte* const part = from + call.send_offsets[i] * bytes;
      std::byte* const place = to + call.recv_offsets[i] * bytes;
      if (r == me) {
        chorus::device_copy(gpu_, place, part, call.send_counts[i] * bytes, stream);
        continue;
      }
      chorus::Call send = {.kind = Kind::send, .count = call.send_counts[i], .type = call.type};
      send.input = part;
      send.peer = r;
      chorus::Call recv = {.kind = Kind::recv, .count = call.recv_counts[i], .type = call.type};
      recv.output = place;
      recv.peer = r;
      calls.push_back({.call = send, .stream = stream, .checked = true});
      calls.push_back({.call = recv, .stream = stream, .checked = true});
    }
  }
}

void GpuDriver::enqueue(Lane& lane, const Tasks& tasks, Entered& entered) {
  entered.insert(entered.end(), tasks.begin(), tasks.end());
  const auto copy = [&](const std::vector<Copy>& copies) {
    for (const Copy& each : copies) {
      chorus::device_copy(gpu_, each.to, each.from, each.bytes, lane.stream);
    }
  };
  try {
    std::vector<chorus::DeviceCall> calls;
    for (const auto& each : tasks) each->begin->hold(lane.stream);
    for (const auto& each : tasks) {
      copy(each->before);
      expand(*each->task, lane.stream, calls);
    }
    if (!calls.empty()) lane.communicator->enqueue(calls);
    for (const auto& each : tasks) copy(each->after);
    const auto end = std::make_shared<const chorus::DeviceMark>(gpu_, lane.stream);
    for (const auto& each : tasks) {
      each->stream = lane.stream;
      each->end = end;
      if (each->uses) each->uses(lane.stream);
    }
  } catch (const std::exception& error) {
    const std::string why = tasks.front()->task->name + ": " + error.what();
    abort(why);
    throw chorus::CollectiveError(amend_(why));
  }
}

void GpuDriver::abort(const std::string& reason) {
  for (Lane& lane : lanes_) lane.communicator->abort(reason);
}

std::string GpuDriver::failure() {
  for (const Lane& lane : lanes_) {
    const std::string* const error = lane.communicator->error();
    if (error == nullptr) continue;
    // Before this rank ends because of it, which the other lane would be told as the cause.
    if (!told_.exchange(true)) abort(*error);
    return amend_(*error);
  }
  return {};
}

}  // namespace chorus_torch
