// Runs what a group holds.
#include <algorithm>
#include <cstring>

#include "nccl/elements.hpp"
#include "nccl/group.hpp"
#include "nccl/schedule_by_name.hpp"

namespace chorus::nccl {
namespace {

/// Inputs that were multiplied beforehand, by operation.
using Products = std::vector<std::vector<std::byte>>;

std::size_t input_blocks(const Call& call, int ranks) {
  return call.kind == Call::Kind::reduce_scatter ? static_cast<std::size_t>(ranks) : 1;
}

/// Floats are scaled by the library as it goes; integers here, exactly and wrapping, because a
/// double does not hold all of them.
Call scaled(const Operation& operation, std::vector<std::byte>& product) {
  Call call = operation.call;
  if (!operation.scaled) return call;
  const void* factor =
      operation.factor_at != nullptr ? operation.factor_at : operation.factor.data();
  if (is_float(call.type)) {
    call.reduction.scale = to_double(factor, call.type);
    return call;
  }
  const std::size_t count = call.count * input_blocks(call, operation.comm->ranks);
  product.resize(count * size_of(call.type));
  multiply(product.data(), call.input, count, call.type, factor);
  call.input = product.data();
  return call;
}

DeviceCall device_call(const Operation& operation) {
  DeviceCall call{.call = operation.call,
                  .stream = operation.stream,
                  .scale_at = operation.factor_at,
                  .schedule = operation.schedule,
                  .checked = operation.checked,
                  .launch_event = operation.launch_event};
  if (operation.scaled && operation.factor_at == nullptr) {
    call.call.reduction.scale = to_double(operation.factor.data(), operation.call.type);
  }
  return call;
}

void run_alone(Operation& operation) {
  if (operation.falls_back) {
    const DeviceCall call = device_call(operation);
    return operation.body->fallback->enqueue(std::span(&call, 1));
  }
  if (operation.on_gpu) return operation.body->gpu->enqueue(device_call(operation));
  std::vector<std::byte> product;
  const ScheduleByName by_name(operation.body->communicator, operation.schedule);
  operation.body->communicator.run(scaled(operation, product));
}

void run_on_gpus(std::vector<Operation>& operations) {
  std::vector<Body*> bodies;
  for (const Operation& each : operations) {
    if (each.on_gpu && std::find(bodies.begin(), bodies.end(), each.body.get()) == bodies.end()) {
      bodies.push_back(each.body.get());
    }
  }
  for (Body* body : bodies) {
    std::vector<DeviceCall> calls, elsewhere;
    for (const Operation& each : operations) {
      if (!each.on_gpu || each.body.get() != body) continue;
      (each.falls_back ? elsewhere : calls).push_back(device_call(each));
    }
    if (!calls.empty()) body->gpu->enqueue(calls);
    if (!elsewhere.empty()) body->fallback->enqueue(elsewhere);
  }
}

void run_all(std::vector<Operation>& operations) {
  run_on_gpus(operations);
  Products products(operations.size());
  std::vector<Request> requests;
  requests.reserve(operations.size());
  try {
    for (std::size_t i = 0; i < operations.size(); ++i) {
      if (operations[i].on_gpu) continue;
      const ScheduleByName by_name(operations[i].body->communicator, operations[i].schedule);
      requests.push_back(
          operations[i].body->communicator.start(scaled(operations[i], products[i])));
    }
    std::vector<Request*> all;
    for (Request& request : requests) all.push_back(&request);
    wait_all(all);
  } catch (...) {
    // The requests that are left wait for their ends when they are destroyed: there shall be one.
    for (const Operation& each : operations) {
      if (!each.body->communicator.failure()) {
        each.body->communicator.abort("another communicator of the same group has failed");
      }
    }
    throw;
  }
}

}  // namespace

void execute(std::vector<Operation>& operations) {
  if (operations.empty()) return;
  try {
    if (operations.size() == 1) return run_alone(operations.front());
    run_all(operations);
  } catch (...) {
    const Outcome outcome = Outcome::of_exception();
    // Arguments were judged before, so nothing ran if they are refused now.
    if (outcome.code != ncclInvalidArgument) {
      for (const Operation& each : operations) each.comm->fail(outcome);
    }
    throw;
  }
}

void deliver_to_self(std::vector<Operation>& operations) {
  const auto to_self = [](const Operation& each, Call::Kind kind) {
    return each.call.kind == kind && each.call.peer == each.comm->rank && !each.on_gpu;
  };
  std::vector<bool> done(operations.size());
  for (std::size_t i = 0; i < operations.size(); ++i) {
    if (!to_self(operations[i], Call::Kind::send)) continue;
    const Call& send = operations[i].call;
    std::size_t j = 0;
    while (j < operations.size() && (done[j] || operations[j].comm != operations[i].comm ||
                                     !to_self(operations[j], Call::Kind::recv))) {
      ++j;
    }
    if (j == operations.size()) {
      refuse(ncclInvalidUsage, "{} sends to itself: the same group must receive it",
             operations[i].comm->who());
    }
    const Call& recv = operations[j].call;
    if (recv.count != send.count || recv.type != send.type) {
      refuse(ncclInvalidUsage, "{} sends itself {} {} but expects {} {}", operations[i].comm->who(),
             send.count, name_of(send.type), recv.count, name_of(recv.type));
    }
    if (send.count > 0) std::memmove(recv.output, send.input, send.count * size_of(send.type));
    done[i] = done[j] = true;
  }
  for (std::size_t i = 0; i < operations.size(); ++i) {
    if (done[i] || !to_self(operations[i], Call::Kind::recv)) continue;
    refuse(ncclInvalidUsage, "{} receives from itself: the same group must send it",
           operations[i].comm->who());
  }
  std::size_t kept = 0;
  for (std::size_t i = 0; i < operations.size(); ++i) {
    if (done[i]) continue;
    if (kept != i) operations[kept] = std::move(operations[i]);
    ++kept;
  }
  operations.resize(kept);
}

}  // namespace chorus::nccl
