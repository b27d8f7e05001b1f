#include "runtime/gpu/communicator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/text/log.hpp"
#include "chorus/error.hpp"
#include "runtime/gpu/communicator_impl.hpp"

namespace chorus {
namespace {

using cuda::address_of;

constexpr std::size_t kReservedBytes = std::size_t{2} << 20;

}  // namespace

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
  base.await_plan();  // what is made for the GPU now stays
  world =
      std::make_unique<DeviceWorld>(*base.control, base.place, group, device, tuning, base.options);
  store = std::make_unique<ImageStore>(context.get());
  const auto n = static_cast<int>(base.place.members.size());
  routines = std::make_unique<DeviceRoutines>(
      Selection(gpu_topology(world->places(), base.selector->topology()),
                gpu_levels(world->places()), base.options, base.selector->plan(),
                gpu_pricing(world->places().all_reach(), base.options)),
      base.place.rank, static_cast<int>(world->shape().slots));
  // All ranks cut a call alike.
  limits = {.blocks = world->blocks(),
            .instances = static_cast<std::uint32_t>(std::max(0, tuning.instances)),
            .words_bytes = world->any_reached() ? tuning.words_bytes : 0,
            .direct_bytes = tuning.direct_bytes,
            .relays = world->any_relayed()};
  order = std::make_unique<DeviceOrder>();
  // The first calls of most shapes then find memory: to allocate more may have to wait for kernels,
  // which may be waiting for this rank.
  static_cast<void>(room_for_scratch(kReservedBytes));
  reached_copies = cuda::allocate(kReservedBytes);
  if (n > 1 && !world->one_process() && !world->any_relayed()) {
    sharing = std::make_unique<DeviceSharing>(*base.control, base.place, group, context.get(),
                                              world->table(), world->same_process(),
                                              [this] { order->finish(); });
  }
  watch = std::make_unique<DeviceWatch>(*base.control, base.place, group, world->status(),
                                        base.options.timeout_ms, [this] {
                                          if (sharing) sharing->look();
                                        });
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
    sharing.reset();
    base.control->close_group(group);
    reached_copies.reset();
    local_copies.clear();
    scratch.clear();
    order.reset();
    store.reset();
    world.reset();
  } catch (const Error& error) {
    log(LogLevel::error, fmt::format("[rank {}]", base.place.rank), error.what());
  }
}

// Nobody's kernels may touch what this rank is about to free: all say goodbye once theirs have
// ended. Where one cannot say it any more, memory is kept rather than pulled from under a kernel.
// Nor is anything freed that others have mapped, whether they use it or not.
void DeviceCommunicator::Impl::leave() {
  bool well = goodbye("leave");
  if (sharing) sharing->stop();
  world->close_mappings();
  if (!world->one_process()) well = goodbye("closed") && well;
  if (well) return;
  if (sharing) sharing->abandon();
  world->abandon();
}

// A verdict on the group ends no goodbye: it reaches the ranks at different times, and one that
// left out the second goodbye for it would be waited for by those that had not heard it yet.
bool DeviceCommunicator::Impl::goodbye(const char* what) {
  try {
    base.control->exchange(fmt::format("{}/{}", group, what), base.place.members, {},
                           base.options.join_timeout_ms);
    return true;
  } catch (const Error& error) {
    log(LogLevel::error, fmt::format("[rank {}]", base.place.rank),
        fmt::format("GPU memory of '{}' is kept until this process ends: {}", group, error.what()));
    return false;
  }
}

// Memory that grows. What was there stays: kernels and graphs may hold it.
std::uint64_t DeviceCommunicator::Impl::room_for_scratch(std::size_t bytes) {
  if (bytes > scratch_size) {
    const cuda::Current current(context.get());
    const std::size_t size = std::max(bytes, 2 * scratch_size);
    scratch.push_back(cuda::allocate_local(size, store->stream()));
    scratch_size = size;
  }
  return scratch.empty() ? 0 : scratch.back().get();
}

// What peers may read from does not grow: to allocate it may have to wait for kernels, of which one
// waits for this rank. Larger copies lie where this GPU alone reaches them.
DeviceCommunicator::Impl::Room DeviceCommunicator::Impl::room_for_copy(std::size_t bytes) {
  const std::size_t used = device::round_up(bytes, 256);
  if (copies_used + bytes <= kReservedBytes) {
    return {reached_copies.get() + std::exchange(copies_used, copies_used + used), true};
  }
  if (local_copies_used + bytes > local_copies_size) {
    const cuda::Current current(context.get());
    const std::size_t size = std::max(local_copies_used + bytes, 2 * local_copies_size);
    local_copies.push_back(cuda::allocate_local(size, store->stream()));
    local_copies_size = size;
  }
  return {local_copies.back().get() + std::exchange(local_copies_used, local_copies_used + used),
          false};
}

void DeviceCommunicator::Impl::copy(std::uint64_t to, std::uint64_t from, std::size_t bytes,
                                    const Enqueuing& where) {
  if (bytes == 0 || to == from) return;
  const auto copy = [&] { return cuda::driver().copy(to, from, bytes, where.stream); };
  cuda::check(where.context.attempt(copy), "copying on the GPU");
}

// The interface ---------------------------------------------------------------------------------

DeviceCommunicator::DeviceCommunicator(Communicator& communicator, int device,
                                       const DeviceTuning& tuning)
    : impl_(std::make_unique<Impl>(on_fixed_ranks(communicator.impl()), device, tuning)) {}

Communicator::Impl& DeviceCommunicator::on_fixed_ranks(Communicator::Impl& host) {
  if (!host.survives) return host;
  throw InputError(
      "Options::on_loss is of calls on host memory: leave it at \"error\" where a GPU "
      "takes part, and use shrink()");
}

Communicator::Impl& DeviceCommunicator::inside(const Communicator& communicator) {
  return communicator.impl();
}

DeviceCommunicator::~DeviceCommunicator() {
  // CUDA does not survive a fork, nor do the threads that would be joined.
  if (impl_ && !impl_->base.of_this_process()) (void)impl_.release();
}

int DeviceCommunicator::device() const { return impl_->device; }

MemoryPlace DeviceCommunicator::place(const void* memory) const {
  cuda::CurrentOnDemand context(impl_->context.get());
  return ask_place(memory, context);
}

void DeviceCommunicator::enqueue(std::span<const DeviceCall> group) { impl_->enqueue(group); }

void DeviceCommunicator::finish() const {
  const cuda::Current current(impl_->context.get());
  impl_->order->finish();
}

bool DeviceCommunicator::share(void* memory, std::size_t size_bytes, std::shared_ptr<void> keep) {
  return impl_->share(memory, size_bytes, std::move(keep));
}

bool DeviceCommunicator::can_share() const { return impl_->sharing != nullptr; }

bool DeviceCommunicator::is_shared(const void* memory) const {
  return impl_->sharing && impl_->sharing->segment_of(address_of(memory), 1, 0) != 0;
}

void DeviceCommunicator::unshare(void* memory) {
  if (impl_->sharing) impl_->sharing->unshare(address_of(memory));
}

void DeviceCommunicator::abort(std::string_view reason) { impl_->watch->abort(reason); }

const std::string* DeviceCommunicator::error() const noexcept { return impl_->watch->error(); }

}  // namespace chorus
