#include "runtime/device_communicator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "base/hash.hpp"
#include "base/log.hpp"
#include "chorus/error.hpp"
#include "model/contract.hpp"
#include "runtime/call.hpp"
#include "runtime/communicator_impl.hpp"
#include "runtime/device_group.hpp"
#include "runtime/device_memory.hpp"
#include "runtime/device_order.hpp"
#include "runtime/device_routines.hpp"
#include "runtime/device_watch.hpp"
#include "runtime/device_world.hpp"
#include "runtime/flight_recorder.hpp"

namespace chorus {
namespace {

using Kind = Call::Kind;
using cuda::address_of;

constexpr std::uint32_t kMessageInstances = 2;
constexpr std::size_t kReservedBytes = std::size_t{2} << 20;

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

cuda::StreamHandle handle_of(void* stream) { return static_cast<cuda::StreamHandle>(stream); }

}  // namespace

struct DeviceCommunicator::Impl {
  Impl(Communicator::Impl& communicator, int ordinal, const DeviceTuning& tuning_given);
  ~Impl();

  void set_up();
  void enqueue(std::span<const DeviceCall> group);
  void share(void* memory, std::size_t size_bytes);
  void leave();

  /// What one call adds to a launch.
  struct Prepared {
    device::CallArguments arguments{};
    std::uint32_t works = 0;  ///< lanes, over all instances; 0: a message
    std::span<const std::uint32_t> lane_ports;
  };
  Prepared prepare(const DeviceCall& call, const BufferPlaces& places, cuda::StreamHandle stream);
  Prepared prepare_message(const DeviceCall& call);
  void place_input(const Call& call, const DeviceRoutine& routine, Prepared& prepared,
                   BufferPlaces& places, cuda::StreamHandle stream);
  void expose(const Call& call, const BufferPlaces& places, device::CallArguments& arguments) const;
  void launch(std::vector<Prepared>& calls, cuda::StreamHandle stream);
  void number_works(std::vector<Prepared>& calls, std::uint32_t& phases, std::uint32_t& blocks);
  std::uint64_t room_for_scratch(std::size_t bytes);
  std::uint64_t room_for_copy(std::size_t bytes);
  void check_room(std::span<const Prepared> calls, std::uint32_t phases,
                  std::uint32_t blocks) const;
  void copy(std::uint64_t to, std::uint64_t from, std::size_t bytes, cuda::StreamHandle stream);

  Communicator::Impl& base;
  std::string group;
  int device;
  DeviceTuning tuning;
  device::Limits limits;
  cuda::PrimaryContext context;
  // Below: made and destroyed while the context is current.
  std::unique_ptr<DeviceWorld> world;
  std::unique_ptr<ImageStore> store;
  std::unique_ptr<DeviceRoutines> routines;
  std::unique_ptr<DeviceOrder> order;
  std::vector<cuda::Memory> scratch;  ///< the last one is in use; graphs may hold the others
  std::size_t scratch_size = 0;
  std::vector<cuda::Memory> copies;
  std::size_t copies_size = 0;
  std::size_t copies_used = 0;  ///< by the group under way
  std::unique_ptr<DeviceWatch> watch;

  /// Memory that the others reach.
  struct Shared {
    std::uint64_t begin;
    std::uint64_t end;
    std::uint32_t segment;
    std::uint64_t buffer;  ///< MemoryPlace::buffer: what else lies there later is not meant
  };
  std::vector<Shared> shared;
  bool sharing = false;  ///< some rank shares something: alike on all
  [[nodiscard]] std::uint32_t segment_of(const MemoryPlace& place, std::uint64_t address,
                                         std::size_t bytes) const;

  std::uint64_t sequence = 0;
};

DeviceCommunicator::Impl::Impl(Communicator::Impl& communicator, int ordinal,
                               const DeviceTuning& tuning_given)
    : base(communicator),
      group(fmt::format("{}/device{}", base.place.key, base.splits++)),
      device(ordinal),
      tuning(tuning_given) {
  int devices = 0;
  cuda::check(cuda::driver().device_count(&devices), "counting GPUs");
  if (ordinal < 0 || ordinal >= devices) {
    throw InputError(fmt::format("GPU {} does not exist: there are {}", ordinal, devices));
  }
  context = cuda::PrimaryContext(ordinal);
  const cuda::Current current(context.get());
  base.control->open_group(group, base.place.members);
  try {
    set_up();
  } catch (...) {  // the communicator may go on without
    base.control->close_group(group);
    throw;
  }
}

void DeviceCommunicator::Impl::set_up() {
  world =
      std::make_unique<DeviceWorld>(*base.control, base.place, group, device, tuning, base.options);
  store = std::make_unique<ImageStore>();
  const auto n = static_cast<int>(base.place.members.size());
  routines = std::make_unique<DeviceRoutines>(
      DeviceChoice(base.selector->plan(), world->places(), base.selector->topology(), base.options,
                   tuning.one_shot_bytes),
      n, base.place.rank, static_cast<int>(world->shape().slots));
  // A link would tear words from their flags, and all ranks cut a call alike.
  limits = {.blocks = world->blocks(),
            .instances = static_cast<std::uint32_t>(std::max(0, tuning.instances)),
            .words_bytes = world->any_relayed() ? 0 : tuning.words_bytes,
            .direct_bytes = tuning.direct_bytes};
  order = std::make_unique<DeviceOrder>();
  // The first calls of most shapes then find memory: to allocate more may have to wait for kernels,
  // which may be waiting for this rank.
  static_cast<void>(room_for_scratch(kReservedBytes));
  static_cast<void>(room_for_copy(kReservedBytes));
  watch = std::make_unique<DeviceWatch>(*base.control, base.place, group, world->status(),
                                        base.options.timeout_ms);
  if (world->relay() != nullptr) {
    world->relay()->start(world->status(),
                          [this](const std::string& reason) { watch->link_failed(reason); });
  }
}

DeviceCommunicator::Impl::~Impl() {
  try {
    const cuda::Current current(context.get());
    // Memory goes only when no kernel, of any rank, can touch it any more.
    order->finish();
    leave();
    world->close_relay();
    watch.reset();
    base.control->close_group(group);
    copies.clear();
    scratch.clear();
    order.reset();
    store.reset();
    world.reset();
  } catch (const Error& error) {
    log(LogLevel::error, fmt::format("[rank {}]", base.place.rank), error.what());
  }
}

// Nobody's kernels may touch what this rank is about to free: all say farewell once theirs have
// ended. Where one cannot say it any more, memory is kept rather than pulled from under a kernel.
void DeviceCommunicator::Impl::leave() {
  const bool well = watch->error() == nullptr;
  try {
    base.control->exchange(group + "/leave", base.place.members, {}, base.options.join_timeout_ms,
                           well ? group : std::string());
  } catch (const Error& error) {
    if (well) log(LogLevel::error, fmt::format("[rank {}]", base.place.rank), error.what());
    world->abandon();
  }
}

// Memory that grows. What was there stays: kernels and graphs may hold it.
std::uint64_t DeviceCommunicator::Impl::room_for_scratch(std::size_t bytes) {
  if (bytes > scratch_size) {
    const std::size_t size = std::max(bytes, 2 * scratch_size);
    scratch.push_back(cuda::allocate_local(size, store->stream()));
    scratch_size = size;
  }
  return scratch.empty() ? 0 : scratch.back().get();
}

// The same, which peers read from.
std::uint64_t DeviceCommunicator::Impl::room_for_copy(std::size_t bytes) {
  if (copies_used + bytes > copies_size) {
    const std::size_t size = std::max(copies_used + bytes, 2 * copies_size);
    copies.push_back(cuda::allocate(size));
    copies_size = size;
  }
  const std::uint64_t at = copies.back().get() + copies_used;
  copies_used += device::round_up(bytes, 256);
  return at;
}

void DeviceCommunicator::Impl::copy(std::uint64_t to, std::uint64_t from, std::size_t bytes,
                                    cuda::StreamHandle stream) {
  if (bytes == 0 || to == from) return;
  cuda::check(cuda::driver().copy(to, from, bytes, stream), "copying on the GPU");
}

// Calls -----------------------------------------------------------------------------------------

DeviceCommunicator::Impl::Prepared DeviceCommunicator::Impl::prepare(const DeviceCall& device_call,
                                                                     const BufferPlaces& places,
                                                                     cuda::StreamHandle stream) {
  if (is_message(device_call.call.kind)) return prepare_message(device_call);
  const Call& call = device_call.call;
  const auto n = static_cast<int>(base.place.members.size());
  const Collective collective{.kind = static_cast<CollectiveKind>(call.kind),
                              .root = peer_of(call)};
  const bool barrier = call.kind == Kind::barrier;
  const std::size_t blocks = num_blocks(collective.kind, n) == 1 ? 1 : static_cast<std::size_t>(n);
  const std::size_t count = barrier ? 0 : call.count;
  const std::size_t bytes = blocks * count * size_of(call.type);
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
  prepared.works = static_cast<std::uint32_t>(routine.lane_ports.size()) * arguments.instances;
  arguments.scratch = room_for_scratch(scratch_bytes);
  // Ranks of other processes reach only what is shared; which the kernels tell each other.
  if (routine.direct != 0 && (world->one_process() || sharing) && !world->any_relayed() && n > 1 &&
      bytes >= limits.direct_bytes) {
    arguments.direct = routine.direct;
  }
  BufferPlaces used = places;
  place_input(call, routine, prepared, used, stream);
  if (arguments.direct != 0) expose(call, used, arguments);
  return prepared;
}

// What peers are told of the buffers: in which of this rank's segments they are or, of threads of
// one process, that they may use the addresses.
void DeviceCommunicator::Impl::expose(const Call& call, const BufferPlaces& places,
                                      device::CallArguments& arguments) const {
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
  for (const Shared& memory : shared) {
    if (address >= memory.begin && address + bytes <= memory.end && place.buffer == memory.buffer) {
      return memory.segment;
    }
  }
  return device::kNotExposed;
}

void DeviceCommunicator::Impl::share(void* memory, std::size_t size_bytes) {
  if (const std::string* error = watch->error()) throw CollectiveError(*error);
  const cuda::Current current(context.get());
  const std::uint64_t begin = address_of(memory);
  const std::uint64_t buffer = place_in_context(memory).buffer;
  const std::uint32_t segment =
      world->share(*base.control, base.place, group, begin, base.options.join_timeout_ms);
  if (segment == 0) return;
  sharing = true;
  shared.push_back({begin, begin + size_bytes, segment, buffer});
}

// Input that must not be read where it is: broadcast out of place, exchanged in place.
void DeviceCommunicator::Impl::place_input(const Call& call, const DeviceRoutine& routine,
                                           Prepared& prepared, BufferPlaces& places,
                                           cuda::StreamHandle stream) {
  device::CallArguments& arguments = prepared.arguments;
  arguments.input = address_of(call.input);
  arguments.output = address_of(call.output);
  const std::size_t bytes = arguments.count * size_of(call.type);
  if (call.kind == Kind::broadcast) {
    if (call.peer == base.place.rank) {
      copy(arguments.output, arguments.input, bytes, stream);
    }
    arguments.input = arguments.output;
    places.input = places.output;
    return;
  }
  const bool exchanged =
      call.kind == Kind::all_to_all || (routine.copy_in_place && arguments.direct != 0);
  if (!exchanged || call.input != call.output) return;
  const Collective collective{.kind = static_cast<CollectiveKind>(call.kind), .root = call.peer};
  const auto n = static_cast<int>(base.place.members.size());
  // No more than there is: behind the one block of an all_reduce may be nothing.
  const std::size_t all =
      bytes * static_cast<std::size_t>(input_blocks(collective, n, base.place.rank));
  const std::uint64_t memory = room_for_copy(all);
  copy(memory, arguments.input, all, stream);
  arguments.input = memory;
  places.input = {MemoryKind::device, device, true, 0};
}

DeviceCommunicator::Impl::Prepared DeviceCommunicator::Impl::prepare_message(
    const DeviceCall& device_call) {
  const Call& call = device_call.call;
  const DeviceRoutine& routine = routines->message(call.peer, call.kind == Kind::send, *store);
  Prepared prepared;
  prepared.lane_ports = routine.lane_ports;
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

void DeviceCommunicator::Impl::launch(std::vector<Prepared>& calls, cuda::StreamHandle stream) {
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
    longest = std::max(longest, call.arguments.protocol == device::Protocol::words
                                    ? bytes
                                    : std::uint64_t{device::kThreads} * 16);
  }
  // Fewer threads meet sooner.
  const auto threads = static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(device::round_up(longest / 8, 32), 128, device::kThreads));
  if (world->relay() != nullptr) world->relay()->expect_launch();
  world->kernels().launch(head, arguments.data(), blocks, threads, stream);
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
  const cuda::Current current(context.get());
  const std::vector<DeviceCall> in_order = launch_order(calls, base.place.rank, n);
  std::vector<BufferPlaces> places;
  for (const DeviceCall& call : in_order)
    places.push_back(check_buffers(call, base.place.rank, n, device));
  if (in_order.empty()) return;
  const cuda::StreamHandle stream = handle_of(calls[0].stream);
  order->begin(calls, stream);
  copies_used = 0;
  const std::uint32_t works = std::min(device::kProgressSlots, limits.blocks * device::kMostWorks);
  for (std::size_t done = 0; done < in_order.size();) {
    const std::size_t end = done + first_launch(std::span(in_order).subspan(done), base.place.rank,
                                                works, kMessageInstances);
    std::vector<Prepared> prepared;
    for (; done < end; ++done) {
      if (void* const event = in_order[done].launch_event) {
        cuda::check(cuda::driver().event_record(static_cast<cuda::EventHandle>(event), stream),
                    "recording the event of a launch");
      }
      prepared.push_back(prepare(in_order[done], places[done], stream));
      device::CallArguments& arguments = prepared.back().arguments;
      arguments.sequence = static_cast<std::uint32_t>(++sequence);
      watch->note(arguments.sequence, in_order[done].call);
    }
    launch(prepared, stream);
  }
  order->end(calls, stream);
}

// The interface ---------------------------------------------------------------------------------

DeviceCommunicator::DeviceCommunicator(Communicator& communicator, int device,
                                       const DeviceTuning& tuning)
    : impl_(std::make_unique<Impl>(communicator.impl(), device, tuning)) {}
Communicator::Impl& DeviceCommunicator::inside(const Communicator& communicator) {
  return communicator.impl();
}

DeviceCommunicator::~DeviceCommunicator() {
  // CUDA does not survive a fork, nor do the threads that would be joined.
  if (impl_ && !impl_->base.of_this_process()) (void)impl_.release();
}

int DeviceCommunicator::device() const { return impl_->device; }

MemoryPlace DeviceCommunicator::place(const void* memory) const {
  const cuda::Current current(impl_->context.get());
  return place_in_context(memory);
}

void DeviceCommunicator::enqueue(std::span<const DeviceCall> group) { impl_->enqueue(group); }

void DeviceCommunicator::finish() const {
  const cuda::Current current(impl_->context.get());
  impl_->order->finish();
}

void DeviceCommunicator::share(void* memory, std::size_t size_bytes) {
  impl_->share(memory, size_bytes);
}

void DeviceCommunicator::unshare(void* memory) {
  std::erase_if(impl_->shared, [memory](const Impl::Shared& shared) {
    return shared.begin == address_of(memory);
  });
}

void DeviceCommunicator::abort(std::string_view reason) { impl_->watch->abort(reason); }

const std::string* DeviceCommunicator::error() const noexcept { return impl_->watch->error(); }

}  // namespace chorus
