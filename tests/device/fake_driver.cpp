#include "fake_driver.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>

#include "device/layout.hpp"
#include "device/twin.hpp"

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
std::vector<CUstream_st*> streams;

namespace {

std::mutex watch_mutex;
std::function<void(std::uint64_t)> on_freed;
std::function<void()> on_flushed;
std::map<std::string, int> calls;
std::map<std::string, std::pair<int, int>> failures;  // result, times
std::atomic<int> global_captures{0};
thread_local int capture_mode = kCaptureModeGlobal;
thread_local int own_captures = 0;

CUstream_st& default_stream() {
  static auto* const stream = new CUstream_st;  // lives as long as the process
  return *stream;
}

// Blocks of all launches that a device holds at a time: who launches more than fit waits, and so
// would a rank's kernel that another one waits for.
void run_kernel(CUctx_st& context, const device::LaunchHead& head,
                const device::CallArguments* arguments, std::uint32_t blocks) {
  constexpr int kMost =
      chorus::testing::kFakeMultiprocessors * chorus::testing::kFakeBlocksPerMultiprocessor;
  {
    std::unique_lock lock(context.mutex);
    context.changed.wait(lock, [&] {
      return !context.held && context.resident + static_cast<int>(blocks) <= kMost;
    });
    context.resident += static_cast<int>(blocks);
  }
  device::run_on_host(head, arguments, blocks);
  {
    const std::lock_guard lock(context.mutex);
    context.resident -= static_cast<int>(blocks);
  }
  context.changed.notify_all();
}

template <class Arguments>
Op kernel(CUctx_st& context, const void* argument, std::uint32_t blocks) {
  const auto& given = *static_cast<const Arguments*>(argument);
  auto launch = std::make_shared<Arguments>();
  launch->head = given.head;
  std::copy_n(given.calls, given.head.num_calls, launch->calls);
  return [launch, blocks, &context] { run_kernel(context, launch->head, launch->calls, blocks); };
}

}  // namespace

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

void begin_capture(int mode) {
  if (mode == kCaptureModeGlobal) ++global_captures;
  if (mode != kCaptureModeRelaxed) ++own_captures;
}

void end_capture(int mode) {
  if (mode == kCaptureModeGlobal) --global_captures;
  if (mode != kCaptureModeRelaxed) --own_captures;
}

int exchange_capture_mode(int mode) { return std::exchange(capture_mode, mode); }

bool spoils_capture() {
  if (capture_mode == kCaptureModeRelaxed) return false;
  if (own_captures > 0) return true;
  return capture_mode == kCaptureModeGlobal && global_captures > 0;
}

Result submit(CUstream_st* handle, Op op) {
  if (handle != nullptr) {
    if (handle->capture != nullptr) {
      handle->capture->ops.push_back(std::move(op));
    } else {
      handle->push(std::move(op));
    }
    return kSuccess;
  }
  // The legacy default stream waits for all streams that were not made to ignore it.
  std::vector<CUstream_st*> before;
  {
    const std::lock_guard lock(mutex);
    before = streams;
  }
  for (CUstream_st* stream : before) {
    if (stream->capture != nullptr) return kCaptureUnsupported;
  }
  for (CUstream_st* stream : before) {
    const auto done = std::make_shared<std::atomic<bool>>(false);
    stream->push([done] { *done = true; });
    default_stream().push([done] {
      while (!*done) std::this_thread::yield();
    });
  }
  default_stream().push(std::move(op));
  return kSuccess;
}

CUstream_st& stream_of(CUstream_st* handle) {
  return handle == nullptr ? default_stream() : *handle;
}

Result allocate(std::size_t size, int ordinal, std::uint64_t& address) {
  if (size == 0) return kInvalidValue;
  if (size > std::size_t{1} << 33) return kOutOfMemory;
  Allocation allocation;
  allocation.size = size;
  allocation.device = ordinal;
  allocation.file = chorus::Fd(::memfd_create("gpu", MFD_CLOEXEC));
  if (::ftruncate(allocation.file.get(), static_cast<off_t>(size)) != 0) return kOutOfMemory;
  void* const memory =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, allocation.file.get(), 0);
  if (memory == MAP_FAILED) return kOutOfMemory;
  address = reinterpret_cast<std::uint64_t>(memory);
  const std::lock_guard lock(mutex);
  allocations[address] = std::move(allocation);
  return kSuccess;
}

Result release(std::uint64_t address) {
  const std::lock_guard lock(mutex);
  const auto found = allocations.find(address);
  if (found == allocations.end()) return kInvalidValue;
  ::munmap(reinterpret_cast<void*>(address), found->second.size);
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

Op launch(const CUfunc_st& function, CUctx_st& context, const void* arguments,
          std::uint32_t blocks) {
  return function.kernel == Kernel::few ? kernel<device::FewCalls>(context, arguments, blocks)
                                        : kernel<device::ManyCalls>(context, arguments, blocks);
}

}  // namespace fake

namespace chorus::testing {

bool fake_cuda() { return true; }

int fake_cuda_calls(const char* symbol) {
  const std::lock_guard lock(fake::mutex);
  return fake::calls[symbol];
}

void fake_cuda_fail(const char* symbol, int result, int times) {
  const std::lock_guard lock(fake::mutex);
  fake::failures[symbol] = {result, times};
}

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
