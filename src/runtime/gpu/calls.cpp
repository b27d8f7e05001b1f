// Calls on GPU memory: which program, with which arguments, in which launch.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "base/hash.hpp"
#include "base/text/log.hpp"
#include "chorus/error.hpp"
#include "model/schedule/contract.hpp"
#include "runtime/engine/call.hpp"
#include "runtime/engine/flight_recorder.hpp"
#include "runtime/gpu/communicator_impl.hpp"
#include "runtime/gpu/group.hpp"

namespace chorus {
namespace {

using Kind = Call::Kind;
using cuda::address_of;

constexpr std::uint32_t kMessageInstances = 2;

// Different for calls that do not match; the same for every replay of a captured one.
std::uint32_t tag_of(const Call& call, Rank rank, std::uint32_t routine_hash) {
  const bool message = is_message(call.kind);
  const bool sending = call.kind == Kind::send;
  Fnv1a fields;
  fields.stirred_word(static_cast<std::uint64_t>(message ? Kind::send : call.kind))
      .stirred_word(call.count)
      .stirred_word(static_cast<std::uint64_t>(call.type))
      .stirred_word(static_cast<std::uint64_t>(reduction_of(call).op))
      .stirred_word(static_cast<std::uint64_t>(message && sending ? rank : peer_of(call)))
      .stirred_word(static_cast<std::uint64_t>(message && !sending ? rank
                                               : message           ? call.peer
                                                                   : 0))
      .stirred_word(routine_hash);
  const std::uint64_t hash = fields.value() * 0xff51afd7ed558ccd;
  return static_cast<std::uint32_t>(hash >> 32) | 1U;  // never 0: memory that nobody wrote
}

/// Of a collective: of one rank's larger buffer.
std::size_t bytes_of(const Call& call, int n) {
  const bool one = num_blocks(static_cast<CollectiveKind>(call.kind), n) == 1;
  return (one ? 1 : static_cast<std::size_t>(n)) * call.count * size_of(call.type);
}

}  // namespace

DeviceCommunicator::Impl::Prepared DeviceCommunicator::Impl::prepare(const DeviceCall& device_call,
                                                                     const BufferPlaces& places,
                                                                     const Enqueuing& where) {
  if (is_message(device_call.call.kind)) return prepare_message(device_call);
  const Call& call = device_call.call;
  const auto n = static_cast<int>(base.place.members.size());
  const Collective collective{.kind = static_cast<CollectiveKind>(call.kind),
                              .root = peer_of(call)};
  const bool barrier = call.kind == Kind::barrier;
  const std::size_t count = barrier ? 0 : call.count;
  const std::size_t bytes = barrier ? 0 : bytes_of(call, n);
  const DeviceRoutine& routine = device_call.schedule.empty()
                                     ? routines->choose(collective, bytes, *store)
                                     : routines->choose(collective, device_call.schedule, *store);

  Prepared prepared;
  device::CallArguments& arguments = prepared.arguments;
  arguments.program = routine.program;
  arguments.count = count;
  arguments.type = call.type;
  const Reduction reduction = reduction_of(call);
  arguments.op = reduction.op;
  arguments.divisor = reduction.op == ReduceOp::avg ? static_cast<std::uint32_t>(n) : 1;
  arguments.scale = reduction.scale;
  arguments.scale_at = address_of(device_call.scale_at);
  arguments.tag = tag_of(call, base.place.rank, routine.hash);
  arguments.next = device::kLocal;
  const std::uint64_t scratch_bytes =
      device::cut(arguments, routine.figures, world->shape(), limits, barrier);
  prepared.lane_ports = routine.lane_ports;
  prepared.schedule = routine.name;
  prepared.works = static_cast<std::uint32_t>(routine.lane_ports.size()) * arguments.instances;
  arguments.scratch = room_for_scratch(scratch_bytes);
  if (routine.direct != 0 && may_be_direct(call)) arguments.direct = routine.direct;
  BufferPlaces used = places;
  place_input(call, routine, prepared, used, where);
  if (arguments.direct != 0) expose(call, used, routine, arguments);
  return prepared;
}

// Ranks of other processes reach only what is shared, and each knows of its own memory alone: the
// kernels tell each other, whether any is or not, since all ranks must do the same.
bool DeviceCommunicator::Impl::may_be_direct(const Call& call) const {
  if (is_message(call.kind) || call.kind == Kind::barrier) return false;
  const auto n = static_cast<int>(base.place.members.size());
  return n > 1 && !world->any_relayed() && bytes_of(call, n) >= limits.direct_bytes;
}

// What peers are told of the buffers: in which of this rank's segments they are or, of threads of
// one process, that they may use the addresses.
void DeviceCommunicator::Impl::expose(const Call& call, const BufferPlaces& places,
                                      const DeviceRoutine& routine,
                                      device::CallArguments& arguments) const {
  if (routine.copy_in_place && call.input == call.output && !world->one_process()) {
    arguments.input_segment = arguments.output_segment = device::kNotExposed;
    return;
  }
  const auto n = static_cast<int>(base.place.members.size());
  const Collective collective{.kind = static_cast<CollectiveKind>(call.kind),
                              .root = peer_of(call)};
  const auto bytes = [&](int blocks) {
    return static_cast<std::size_t>(blocks) * arguments.count * size_of(call.type);
  };
  arguments.input_segment = segment_of(places.input, arguments.input,
                                       bytes(input_blocks(collective, n, base.place.rank)));
  arguments.output_segment = segment_of(places.output, arguments.output,
                                        bytes(output_blocks(collective, n, base.place.rank)));
}

std::uint32_t DeviceCommunicator::Impl::segment_of(const MemoryPlace& place, std::uint64_t address,
                                                   std::size_t bytes) const {
  if (bytes == 0) return 0;
  if (world->one_process()) {
    return world->one_device() || place.peers_reach ? 0 : device::kNotExposed;
  }
  const std::uint32_t segment = sharing ? sharing->segment_of(address, bytes, place.buffer) : 0;
  return segment != 0 ? segment : device::kNotExposed;
}

bool DeviceCommunicator::Impl::share(void* memory, std::size_t size_bytes,
                                     std::shared_ptr<void> keep) {
  if (!sharing) return false;
  cuda::CurrentOnDemand here(context.get());
  const std::uint64_t buffer = ask_place(memory, here).buffer;
  return sharing->share(address_of(memory), size_bytes, buffer, std::move(keep));
}

// Input that must not be read where it is: broadcast out of place, exchanged in place.
void DeviceCommunicator::Impl::place_input(const Call& call, const DeviceRoutine& routine,
                                           Prepared& prepared, BufferPlaces& places,
                                           const Enqueuing& where) {
  device::CallArguments& arguments = prepared.arguments;
  arguments.input = address_of(call.input);
  arguments.output = address_of(call.output);
  const std::size_t bytes = arguments.count * size_of(call.type);
  if (call.kind == Kind::broadcast) {
    if (call.peer == base.place.rank) {
      copy(arguments.output, arguments.input, bytes, where);
    }
    arguments.input = arguments.output;
    places.input = places.output;
    return;
  }
  // A copy lies where other processes do not reach it.
  const bool exchanged = call.kind == Kind::all_to_all ||
                         (routine.copy_in_place && arguments.direct != 0 && world->one_process());
  if (!exchanged || call.input != call.output) return;
  const Collective collective{.kind = static_cast<CollectiveKind>(call.kind), .root = call.peer};
  const auto n = static_cast<int>(base.place.members.size());
  // No more than there is: behind the one block of an all_reduce may be nothing.
  const std::size_t all =
      bytes * static_cast<std::size_t>(input_blocks(collective, n, base.place.rank));
  const auto [memory, peers_reach] = room_for_copy(all);
  copy(memory, arguments.input, all, where);
  arguments.input = memory;
  places.input = {.kind = MemoryKind::device, .device = device, .peers_reach = peers_reach};
}

DeviceCommunicator::Impl::Prepared DeviceCommunicator::Impl::prepare_message(
    const DeviceCall& device_call) {
  const Call& call = device_call.call;
  const DeviceRoutine& routine = routines->message(call.peer, call.kind == Kind::send, *store);
  Prepared prepared;
  prepared.lane_ports = routine.lane_ports;
  prepared.schedule = routine.name;
  device::CallArguments& arguments = prepared.arguments;
  arguments.program = routine.program;
  arguments.input = address_of(call.input);
  arguments.output = address_of(call.output);
  arguments.count = call.count;
  arguments.type = call.type;
  arguments.divisor = 1;
  arguments.scale = 1.0;
  arguments.tag = tag_of(call, base.place.rank, 0);
  arguments.next = device::kLocal;
  device::Limits few = limits;
  few.instances = kMessageInstances;
  few.blocks = kMessageInstances;
  device::cut(arguments, routine.figures, world->shape(), few, call.count == 0);
  // As many lanes for each message, so that the k-th lane of one goes on with the next one's.
  arguments.instances = kMessageInstances;
  return prepared;
}

void DeviceCommunicator::Impl::number_works(std::vector<Prepared>& calls, std::uint32_t& phases,
                                            std::uint32_t& blocks) {
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint32_t> last;  // message by its program
  std::uint32_t works = 0;
  phases = 0;
  blocks = 1;
  bool messages = false;
  for (std::uint32_t i = 0; i < calls.size(); ++i) {
    device::CallArguments& arguments = calls[i].arguments;
    const bool message = calls[i].works == 0;
    if (!message || !messages) {
      works = 0;
      ++phases;
    }
    messages = message;
    arguments.phase = phases - 1;
    arguments.first_work = works;
    if (message) {
      const auto [before, is_first] = last.try_emplace({arguments.program, 0}, i);
      if (!is_first) {
        calls[before->second].arguments.next = i;
        arguments.follows = 1;
        before->second = i;
        continue;
      }
    }
    works += message ? arguments.instances : calls[i].works;
    blocks = std::max(blocks, arguments.direct != 0 ? limits.blocks : works);
  }
  blocks = std::min(blocks, limits.blocks);
  check_room(calls, phases, blocks);
}

// A lane that no block has room for would never run, and others would wait for it.
void DeviceCommunicator::Impl::check_room(std::span<const Prepared> calls, std::uint32_t phases,
                                          std::uint32_t blocks) const {
  std::vector<device::Placement> at_once;
  for (std::uint32_t phase = 0; phase < phases; ++phase) {
    at_once.clear();
    for (const Prepared& call : calls) {
      const device::CallArguments& arguments = call.arguments;
      if (arguments.phase != phase || arguments.follows != 0) continue;
      at_once.push_back({arguments.first_work, arguments.instances, call.lane_ports});
    }
    if (device::have_room(at_once, blocks)) continue;
    throw InputError(fmt::format(
        "rank {}: {} calls at once need more than the {} blocks that this rank has on "
        "GPU {} can hold ({} lanes and {} ports each): split the group, or let fewer "
        "ranks share the GPU",
        base.place.rank, at_once.size(), blocks, device, device::kMostWorks, device::kMostPorts));
  }
}

// Why this schedule, the log says once for each (DeviceRoutines); when it ends only the GPU knows.
void DeviceCommunicator::Impl::tell(const Prepared& prepared, const DeviceCall& call) const {
  log(LogLevel::debug, who(base.place),
      fmt::format("GPU call {} {} runs {} on GPU {}, {}{}", prepared.arguments.sequence,
                  signature(call.call), prepared.schedule, device,
                  prepared.arguments.direct != 0 ? "reading the buffers of peers" : "by messages",
                  call.schedule.empty() ? "" : ": the caller names it"));
}

void DeviceCommunicator::Impl::launch(std::vector<Prepared>& calls, const Enqueuing& where) {
  device::LaunchHead head{};
  std::uint32_t blocks = 1;
  number_works(calls, head.num_phases, blocks);
  head.table = world->table();
  head.timeout_ns = static_cast<std::uint64_t>(base.options.timeout_ms) * 1'000'000;
  head.num_calls = static_cast<std::uint32_t>(calls.size());
  std::vector<device::CallArguments> arguments;
  std::uint64_t longest = 0;
  for (const Prepared& call : calls) {
    arguments.push_back(call.arguments);
    const std::uint64_t bytes = call.arguments.count * size_of(call.arguments.type);
    longest = std::max(longest, call.arguments.protocol != device::Protocol::bulk
                                    ? bytes
                                    : std::uint64_t{device::kThreads} * 16);
  }
  // Fewer threads meet sooner.
  const auto threads = static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(device::round_up(longest / 8, 32), 128, device::kThreads));
  if (world->relay() != nullptr) world->relay()->expect_launch();
  world->kernels().launch(head, arguments.data(), blocks, threads, where.stream, where.context);
}

void DeviceCommunicator::Impl::enqueue(std::span<const DeviceCall> calls) {
  if (const std::string* error = watch->error()) throw CollectiveError(*error);
  const auto n = static_cast<int>(base.place.members.size());
  for (const DeviceCall& call : calls) {
    check_call(call.call, base.place.rank, n, true);
    if (call.call.kind == Kind::all_to_all_v) {
      throw InputError("all_to_all_v on the GPU is a group of sends and receives");
    }
  }
  cuda::CurrentOnDemand current(context.get());
  const std::vector<DeviceCall> in_order = launch_order(calls, base.place.rank, n);
  std::vector<BufferPlaces> places;
  for (const DeviceCall& call : in_order) {
    const bool ask =
        !call.checked || (world->one_process() && !world->one_device() && may_be_direct(call.call));
    places.push_back(ask ? check_buffers(call, base.place.rank, n, device, current)
                         : BufferPlaces{});
  }
  if (in_order.empty()) return;
  const Enqueuing where{static_cast<cuda::StreamHandle>(calls[0].stream), current};
  order->begin(calls, where.stream, current);
  copies_used = local_copies_used = 0;
  const std::uint32_t works = std::min(device::kProgressSlots, limits.blocks * device::kMostWorks);
  for (std::size_t done = 0; done < in_order.size();) {
    const std::size_t end = done + first_launch(std::span(in_order).subspan(done), base.place.rank,
                                                works, kMessageInstances);
    std::vector<Prepared> prepared;
    for (; done < end; ++done) {
      if (void* const event = in_order[done].launch_event) {
        const auto record = [&] {
          return cuda::driver().event_record(static_cast<cuda::EventHandle>(event), where.stream);
        };
        cuda::check(current.attempt(record), "recording the event of a launch");
      }
      prepared.push_back(prepare(in_order[done], places[done], where));
      device::CallArguments& arguments = prepared.back().arguments;
      arguments.sequence = static_cast<std::uint32_t>(++sequence);
      watch->note(arguments.sequence, in_order[done].call);
      if (base.tells_calls) tell(prepared.back(), in_order[done]);
    }
    launch(prepared, where);
  }
  order->end(calls, where.stream, current);
}

}  // namespace chorus
