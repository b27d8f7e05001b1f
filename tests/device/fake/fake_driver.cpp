#include "fake_driver.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>

#include "device/layout.hpp"
#include "fake_kernels.hpp"

namespace device = chorus::device;
using namespace chorus::cuda;

namespace fake {

std::mutex mutex;
std::map<std::uint64_t, Allocation> allocations;
std::map<std::uint64_t, std::size_t> registered;
std::atomic<bool> peer_access{true};
std::atomic<bool> damage{false};
std::atomic<bool> dmabuf_exports{true};
std::atomic<int> writes_ordering{kOrderedForOwner};
std::atomic<int> flush_writes_options{kFlushByHost};
CUctx_st contexts[chorus::testing::kFakeDevices];
std::atomic<int> multiprocessors{chorus::testing::kFakeMultiprocessors};
std::atomic<int> compute_capability{90};
std::atomic<bool> allocation_waits{false};
std::atomic<int> runtime_device{-1};

namespace {

std::mutex watch_mutex;
std::function<void(std::uint64_t)> on_freed;
std::function<void()> on_flushed;
std::map<std::string, int> calls;
std::map<std::string, std::pair<int, int>> failures;  // result, times
chorus::testing::FakeLaunch last_launch;
std::map<std::uint64_t, int> running;  // kernels, by the table of their communicator

void enter(CUctx_st& context, const KernelLaunch& launch) {
  const device::LaunchHead& head = *launch.head;
  if (head.num_calls == 0) return;
  const std::lock_guard lock(mutex);
  const auto& table = *reinterpret_cast<const device::RankTable*>(head.table);
  const bool direct =
      std::any_of(launch.calls, launch.calls + head.num_calls, [](const auto& call) {
        return call.direct != 0 && call.input_segment != device::kNotExposed &&
               call.output_segment != device::kNotExposed;
      });
  const bool words = std::any_of(launch.calls, launch.calls + head.num_calls, [](const auto& call) {
    return call.protocol != device::Protocol::bulk;
  });
  last_launch = {head.timeout_ns, head.num_calls, table.beyond_device != 0, direct, words};
  if (++running[head.table] > 1) {
    fault(context, kLaunchFailed, "two kernels of one communicator run at the same time");
  }
}

void leave(const device::LaunchHead& head) {
  if (head.num_calls == 0) return;
  const std::lock_guard lock(mutex);
  --running[head.table];
}

bool unreachable(std::uint64_t address, std::uint32_t segment) {
  const std::lock_guard lock(mutex);
  const auto found = holder(address);
  return segment == 0 && found != allocations.end() && found->second.pool;
}

// Ranks on other devices that are told of an address use it, so it must be memory of theirs, too.
void check_offers(CUctx_st& context, const device::LaunchHead& head,
                  const device::CallArguments* arguments) {
  const auto& table = *reinterpret_cast<const device::RankTable*>(head.table);
  bool apart = false;
  for (std::uint32_t r = 0; r < table.shape.ranks; ++r) {
    apart = apart || (table.arenas[r] != 0 && device_of(table.arenas[r]) != context.ordinal);
  }
  for (std::uint32_t i = 0; apart && i < head.num_calls; ++i) {
    const device::CallArguments& call = arguments[i];
    if (call.direct != 0 && (unreachable(call.input, call.input_segment) ||
                             unreachable(call.output, call.output_segment))) {
      fault(context, kIllegalAddress, "memory of a pool was offered to another device");
    }
  }
}

// Blocks of all launches that a device holds at a time: who launches more than fit waits, and so
// would a rank's kernel that another one waits for.
void run_resident(CUctx_st& context, const KernelLaunch& launch) {
  const int most = multiprocessors * chorus::testing::kFakeBlocksPerMultiprocessor;
  const int blocks = static_cast<int>(launch.blocks);
  enter(context, launch);
  check_offers(context, *launch.head, launch.calls);
  {
    std::unique_lock lock(context.mutex);
    context.changed.wait(lock, [&] { return !context.held && context.resident + blocks <= most; });
    context.resident += blocks;
    ++context.running;
  }
  run_kernel(launch);
  {
    const std::lock_guard lock(context.mutex);
    context.resident -= blocks;
    --context.running;
  }
  leave(*launch.head);
  context.changed.notify_all();
}

template <class Arguments>
Op kernel(CUctx_st& context, const char* name, const void* argument, std::uint32_t blocks,
          std::uint32_t threads) {
  const auto& given = *static_cast<const Arguments*>(argument);
  auto launch = std::make_shared<Arguments>();
  launch->head = given.head;
  std::copy_n(given.calls, given.head.num_calls, launch->calls);
  return [=, &context] {
    run_resident(context, {.kernel = name,
                           .arguments = launch.get(),
                           .argument_bytes = sizeof(Arguments),
                           .head = &launch->head,
                           .calls = launch->calls,
                           .device = context.ordinal,
                           .blocks = blocks,
                           .threads = threads});
  };
}

}  // namespace

chorus::testing::FakeLaunch launch_before() {
  const std::lock_guard lock(mutex);
  return last_launch;
}

std::vector<CUctx_st*>& current() {
  thread_local std::vector<CUctx_st*> contexts_pushed;
  return contexts_pushed;
}

void tell_freed(std::uint64_t address) {
  const std::lock_guard lock(watch_mutex);
  if (on_freed) on_freed(address);
}

void tell_flushed() {
  const std::lock_guard lock(watch_mutex);
  if (on_flushed) on_flushed();
}

Result injected(const char* symbol) {
  const std::lock_guard lock(mutex);
  ++calls[symbol];
  const auto found = failures.find(symbol);
  if (found == failures.end() || found->second.second == 0) return kSuccess;
  --found->second.second;
  return found->second.first;
}

Result state_of_context() {
  return current().empty() ? kInvalidContext : current().back()->fault.load();
}

void fault(CUctx_st& context, Result result, const std::string& why) {
  std::fprintf(stderr, "fake driver, device %d: %s\n", context.ordinal, why.c_str());
  context.fault = result;
}

bool quiet(CUctx_st& context) {
  std::unique_lock lock(context.mutex);
  return context.changed.wait_for(lock, std::chrono::seconds(20),
                                  [&] { return context.running == 0; });
}

std::uint64_t new_buffer_id() {
  static std::atomic<std::uint64_t> buffers{0};
  return ++buffers;
}

Result allocate(std::size_t size, int ordinal, bool pool, std::uint64_t& address) {
  constexpr std::size_t kLarge = std::size_t{1} << 20;  // from here on: blocks of their own
  const std::size_t offset = ordinal >= 0 && size < kLarge ? 256 : 0;
  if (size == 0) return kInvalidValue;
  if (size > std::size_t{1} << 33) return kOutOfMemory;
  Allocation allocation;
  allocation.size = size;
  allocation.device = ordinal;
  allocation.pool = pool;
  allocation.buffer_id = new_buffer_id();
  allocation.mapped_size = size + offset;
  allocation.file = chorus::Fd(::memfd_create("gpu", MFD_CLOEXEC));
  const auto length = static_cast<off_t>(allocation.mapped_size);
  if (::ftruncate(allocation.file.get(), length) != 0) return kOutOfMemory;
  void* const memory = ::mmap(nullptr, allocation.mapped_size, PROT_READ | PROT_WRITE, MAP_SHARED,
                              allocation.file.get(), 0);
  if (memory == MAP_FAILED) return kOutOfMemory;
  allocation.mapping = reinterpret_cast<std::uint64_t>(memory);
  address = allocation.mapping + offset;
  memory_is_new(address, size);
  const std::lock_guard lock(mutex);
  allocations[address] = std::move(allocation);
  return kSuccess;
}

Result release(std::uint64_t address) {
  const std::lock_guard lock(mutex);
  const auto found = allocations.find(address);
  if (found == allocations.end()) return kInvalidValue;
  ::munmap(reinterpret_cast<void*>(found->second.mapping), found->second.mapped_size);
  allocations.erase(found);
  return kSuccess;
}

int device_of(std::uint64_t address) {
  const std::lock_guard lock(mutex);
  const auto found = holder(address);
  return found == allocations.end() ? -1 : found->second.device;
}

std::map<std::uint64_t, Allocation>::iterator holder(std::uint64_t address) {
  auto found = allocations.upper_bound(address);
  if (found == allocations.begin()) return allocations.end();
  --found;
  return address - found->first < found->second.size ? found : allocations.end();
}

bool holds(std::uint64_t address, std::size_t size) {
  if (size == 0) return true;
  const std::lock_guard lock(mutex);
  if (const auto found = holder(address); found != allocations.end()) {
    return size <= found->second.size - (address - found->first);
  }
  auto found = registered.upper_bound(address);
  if (found == registered.begin()) return false;
  --found;
  return address - found->first < found->second && size <= found->second - (address - found->first);
}

Op launch(const CUfunc_st& function, CUctx_st& context, const void* arguments, std::uint32_t blocks,
          std::uint32_t threads) {
  return function.kernel == Kernel::few
             ? kernel<device::FewCalls>(context, "chorus_run_few", arguments, blocks, threads)
             : kernel<device::ManyCalls>(context, "chorus_run_many", arguments, blocks, threads);
}

}  // namespace fake

namespace chorus::testing {

bool fake_cuda() { return true; }

int fake_cuda_calls(const char* symbol) {
  const std::lock_guard lock(fake::mutex);
  return fake::calls[symbol];
}

int fake_cuda_calls() {
  const std::lock_guard lock(fake::mutex);
  int sum = 0;
  for (const auto& [symbol, number] : fake::calls) sum += number;
  return sum;
}

FakeLaunch fake_cuda_last_launch() { return fake::launch_before(); }

void fake_cuda_fail(const char* symbol, int result, int times) {
  const std::lock_guard lock(fake::mutex);
  fake::failures[symbol] = {result, times};
}

void fake_cuda_heal() {
  for (CUctx_st& context : fake::contexts) context.fault = chorus::cuda::kSuccess;
}

void fake_cuda_fault(int device) {
  fake::fault(fake::contexts[device], fake::kIllegalAddress, "a fault on command");
}

void fake_cuda_multiprocessors(int count) {
  fake::multiprocessors = count == 0 ? kFakeMultiprocessors : count;
}

void fake_cuda_compute_capability(int capability) {
  fake::compute_capability = capability == 0 ? 90 : capability;
}

void fake_cuda_allocation_waits(bool waits) { fake::allocation_waits = waits; }
void fake_cuda_runtime_device(int device) { fake::runtime_device = device; }

void fake_cuda_peer_access(bool access) { fake::peer_access = access; }
void fake_cuda_damage(bool damage) { fake::damage = damage; }

void fake_cuda_gpu_direct(const FakeGpuDirect& support) {
  fake::dmabuf_exports = support.exports;
  fake::writes_ordering = support.ordered ? kOrderedForOwner : 0;
  fake::flush_writes_options = support.flushes ? kFlushByHost : 0;
}

void fake_cuda_watch(std::function<void(std::uint64_t)> freed, std::function<void()> flushed) {
  const std::lock_guard lock(fake::watch_mutex);
  fake::on_freed = std::move(freed);
  fake::on_flushed = std::move(flushed);
}

void fake_cuda_hold(int device, bool held) {
  CUctx_st& context = fake::contexts[device];
  {
    const std::lock_guard lock(context.mutex);
    context.held = held;
  }
  context.changed.notify_all();
}

std::size_t fake_cuda_allocated() {
  const std::lock_guard lock(fake::mutex);
  std::size_t bytes = fake::registered.size();
  for (const auto& [address, allocation] : fake::allocations) {
    if (!allocation.imported) bytes += allocation.size;
  }
  return bytes;
}

}  // namespace chorus::testing
