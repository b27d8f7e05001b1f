#include "fake_cuda.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.hpp"
#include "device/driver_api.hpp"
#include "device/layout.hpp"
#include "device/twin.hpp"

using namespace chorus::cuda;
namespace device = chorus::device;

namespace {

constexpr Result kInvalidValue = 1;
constexpr Result kOutOfMemory = 2;
constexpr Result kInvalidDevice = 101;
constexpr Result kInvalidContext = 201;
constexpr Result kInvalidHandle = 400;
constexpr Result kNotFound = 500;
constexpr Result kCaptureUnsupported = 900;
constexpr Result kCaptureInvalidated = 901;

using Op = std::function<void()>;

std::mutex mutex;  // everything below, but queues and events, which have their own

struct Allocation {
  std::size_t size = 0;
  int device = -1;  // -1: pinned
  chorus::Fd file;
  bool imported = false;
};
std::map<std::uint64_t, Allocation> allocations;
std::map<std::string, int> calls;
std::map<std::string, std::pair<int, int>> failures;  // result, times
std::atomic<int> global_captures{0};
thread_local int capture_mode = kCaptureModeGlobal;
thread_local int own_captures = 0;

Result injected(const char* symbol) {
  const std::lock_guard lock(mutex);
  ++calls[symbol];
  const auto found = failures.find(symbol);
  if (found == failures.end() || found->second.second == 0) return kSuccess;
  --found->second.second;
  return found->second.first;
}

/// What may not be done while a capture is under way that this thread's mode does not permit.
bool spoils_capture() {
  if (capture_mode == kCaptureModeRelaxed) return false;
  if (own_captures > 0) return true;
  return capture_mode == kCaptureModeGlobal && global_captures > 0;
}

}  // namespace

// The driver's handles.
struct CUctx_st {
  int ordinal = 0;
  std::mutex mutex;
  std::condition_variable changed;
  int resident = 0;
  bool held = false;
};
enum class Kernel { few, many, ping, layout };
struct CUfunc_st {
  Kernel kernel;
};
struct CUmod_st {
  CUfunc_st few{Kernel::few};
  CUfunc_st many{Kernel::many};
  CUfunc_st ping{Kernel::ping};
  CUfunc_st layout{Kernel::layout};
};
struct CUgraph_st {
  std::vector<Op> ops;
  std::vector<CUstream_st*> streams;  // while it is captured
  bool invalid = false;
};
struct CUgraphExec_st {
  std::vector<Op> ops;
};

struct CUstream_st {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Op> queue;
  bool busy = false;
  bool ending = false;
  bool blocking = false;
  CUgraph_st* capture = nullptr;
  int mode = 0;
  std::thread worker;

  CUstream_st() : worker([this] { run(); }) {}
  ~CUstream_st() {
    {
      const std::lock_guard lock(mutex);
      ending = true;
    }
    changed.notify_all();
    worker.join();
  }
  void push(Op op) {
    {
      const std::lock_guard lock(mutex);
      queue.push_back(std::move(op));
    }
    changed.notify_all();
  }
  void drain() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return queue.empty() && !busy; });
  }
  bool idle() {
    const std::lock_guard lock(mutex);
    return queue.empty() && !busy;
  }
  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return ending || !queue.empty(); });
      if (queue.empty()) return;
      const Op op = std::move(queue.front());
      queue.pop_front();
      busy = true;
      lock.unlock();
      op();
      lock.lock();
      busy = false;
      changed.notify_all();
    }
  }
};

struct CUevent_st {
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t recorded = 0;
  std::uint64_t completed = 0;
  CUgraph_st* capture = nullptr;
};

namespace {

CUctx_st contexts[chorus::testing::kFakeDevices];
std::vector<CUstream_st*> streams;  // blocking ones
thread_local std::vector<CUctx_st*> current;

CUstream_st& default_stream() {
  static auto* const stream = new CUstream_st;  // lives as long as the process
  return *stream;
}

/// Adds an operation to a stream, or to the graph that it is captured into.
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

/// The allocation that holds `address`, with the mutex held.
std::map<std::uint64_t, Allocation>::iterator holder(std::uint64_t address) {
  auto found = allocations.upper_bound(address);
  if (found == allocations.begin()) return allocations.end();
  --found;
  return address - found->first < found->second.size ? found : allocations.end();
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

namespace chorus::testing {

bool fake_cuda() { return true; }

int fake_cuda_calls(const char* symbol) {
  const std::lock_guard lock(mutex);
  return ::calls[symbol];
}

void fake_cuda_fail(const char* symbol, int result, int times) {
  const std::lock_guard lock(mutex);
  failures[symbol] = {result, times};
}

void fake_cuda_hold(int device, bool held) {
  CUctx_st& context = contexts[device];
  {
    const std::lock_guard lock(context.mutex);
    context.held = held;
  }
  context.changed.notify_all();
}

std::size_t fake_cuda_allocated() {
  const std::lock_guard lock(mutex);
  std::size_t bytes = 0;
  for (const auto& [address, allocation] : allocations) {
    if (!allocation.imported) bytes += allocation.size;
  }
  return bytes;
}

}  // namespace chorus::testing

#define FAKE(symbol)                                                 \
  if (const Result failed = injected(#symbol); failed != kSuccess) { \
    return failed;                                                   \
  }

extern "C" {

Result cuInit(unsigned) {
  FAKE(cuInit)
  for (int i = 0; i < chorus::testing::kFakeDevices; ++i) contexts[i].ordinal = i;
  return kSuccess;
}
Result cuDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}
Result cuGetErrorName(Result result, const char** name) {
  *name = result == kOutOfMemory          ? "CUDA_ERROR_OUT_OF_MEMORY"
          : result == kCaptureUnsupported ? "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
                                          : "CUDA_ERROR_FAKE";
  return kSuccess;
}
Result cuGetErrorString(Result result, const char** text) {
  *text = result == kOutOfMemory ? "out of memory" : "refused by the fake driver";
  return kSuccess;
}
Result cuDeviceGetCount(int* count) {
  *count = chorus::testing::kFakeDevices;
  return kSuccess;
}
Result cuDeviceGet(Device* found, int ordinal) {
  if (ordinal < 0 || ordinal >= chorus::testing::kFakeDevices) return kInvalidDevice;
  *found = ordinal;
  return kSuccess;
}
Result cuDeviceGetAttribute(int* value, int attribute, Device) {
  *value = attribute == kMultiprocessorCount ? chorus::testing::kFakeMultiprocessors : 9;
  return kSuccess;
}
Result cuDeviceGetUuid_v2(Uuid* uuid, Device ordinal) {
  *uuid = {};
  uuid->bytes[0] = static_cast<char>('A' + ordinal);
  return kSuccess;
}
Result cuDeviceGetName(char* name, int size, Device) {
  std::strncpy(name, "Fake GPU", static_cast<std::size_t>(size));
  return kSuccess;
}
Result cuDeviceCanAccessPeer(int* can, Device, Device) {
  FAKE(cuDeviceCanAccessPeer)
  *can = 1;
  return kSuccess;
}
Result cuDevicePrimaryCtxRetain(Context* context, Device ordinal) {
  if (ordinal < 0 || ordinal >= chorus::testing::kFakeDevices) return kInvalidDevice;
  *context = &contexts[ordinal];
  return kSuccess;
}
Result cuDevicePrimaryCtxRelease_v2(Device) { return kSuccess; }
Result cuCtxPushCurrent_v2(Context context) {
  current.push_back(context);
  return kSuccess;
}
Result cuCtxPopCurrent_v2(Context* context) {
  if (current.empty()) return kInvalidContext;
  *context = current.back();
  current.pop_back();
  return kSuccess;
}
Result cuCtxGetCurrent(Context* context) {
  *context = current.empty() ? nullptr : current.back();
  return kSuccess;
}
Result cuCtxGetDevice(Device* ordinal) {
  if (current.empty()) return kInvalidContext;
  *ordinal = current.back()->ordinal;
  return kSuccess;
}
Result cuCtxEnablePeerAccess(Context, unsigned) { return kSuccess; }

Result cuModuleLoadData(Module* module, const void*) {
  FAKE(cuModuleLoadData)
  if (current.empty()) return kInvalidContext;
  *module = new CUmod_st;
  return kSuccess;
}
Result cuModuleUnload(Module module) {
  delete module;
  return kSuccess;
}
Result cuModuleGetFunction(Function* function, Module module, const char* name) {
  if (std::string(name) == "chorus_run_few") {
    *function = &module->few;
  } else if (std::string(name) == "chorus_run_many") {
    *function = &module->many;
  } else if (std::string(name) == "chorus_ping") {
    *function = &module->ping;
  } else if (std::string(name) == "chorus_layout") {
    *function = &module->layout;
  } else {
    return kNotFound;
  }
  return kSuccess;
}
Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Function, int, std::size_t) {
  *blocks = chorus::testing::kFakeBlocksPerMultiprocessor;
  return kSuccess;
}
Result cuLaunchKernel(Function function, unsigned blocks, unsigned, unsigned, unsigned threads,
                      unsigned, unsigned, unsigned, StreamHandle stream, void** parameters,
                      void**) {
  FAKE(cuLaunchKernel)
  if (current.empty()) return kInvalidContext;
  if (function->kernel == Kernel::layout) {
    auto* const hash = *static_cast<std::uint64_t* const*>(parameters[0]);
    return submit(stream, [hash] { *hash = device::layout_hash(); });
  }
  if (threads == 0 || threads > device::kThreads || threads % 32 != 0 || blocks == 0) {
    return kInvalidValue;
  }
  if (function->kernel == Kernel::ping) return submit(stream, [] {});
  return submit(stream, function->kernel == Kernel::few
                            ? kernel<device::FewCalls>(*current.back(), parameters[0], blocks)
                            : kernel<device::ManyCalls>(*current.back(), parameters[0], blocks));
}

Result cuMemAlloc_v2(Address* address, std::size_t size) {
  FAKE(cuMemAlloc_v2)
  if (current.empty()) return kInvalidContext;
  if (spoils_capture()) return kCaptureUnsupported;
  std::uint64_t found = 0;
  const Result result = allocate(size, current.back()->ordinal, found);
  *address = found;
  return result;
}
Result cuMemFree_v2(Address address) {
  FAKE(cuMemFree_v2)
  if (spoils_capture()) return kCaptureUnsupported;
  return release(address);
}
Result cuMemGetAddressRange_v2(Address* base, std::size_t* size, Address address) {
  const std::lock_guard lock(mutex);
  const auto found = holder(address);
  if (found == allocations.end()) return kInvalidValue;
  *base = found->first;
  *size = found->second.size;
  return kSuccess;
}
Result cuMemHostAlloc(void** memory, std::size_t size, unsigned) {
  FAKE(cuMemHostAlloc)
  std::uint64_t address = 0;
  const Result result = allocate(size, -1, address);
  *memory = reinterpret_cast<void*>(address);
  return result;
}
Result cuMemFreeHost(void* memory) { return release(reinterpret_cast<std::uint64_t>(memory)); }
Result cuMemHostGetDevicePointer_v2(Address* address, void* memory, unsigned) {
  *address = reinterpret_cast<Address>(memory);
  return kSuccess;
}
Result cuMemcpyHtoDAsync_v2(Address to, const void* from, std::size_t size, StreamHandle stream) {
  FAKE(cuMemcpyHtoDAsync_v2)
  // Pageable memory is read before the call returns.
  std::vector<char> data(static_cast<const char*>(from), static_cast<const char*>(from) + size);
  return submit(stream, [to, data = std::move(data)] {
    std::memcpy(reinterpret_cast<void*>(to), data.data(), data.size());
  });
}
Result cuMemcpyDtoHAsync_v2(void* to, Address from, std::size_t size, StreamHandle stream) {
  FAKE(cuMemcpyDtoHAsync_v2)
  return submit(stream, [=] { std::memcpy(to, reinterpret_cast<const void*>(from), size); });
}
Result cuMemcpyDtoDAsync_v2(Address to, Address from, std::size_t size, StreamHandle stream) {
  FAKE(cuMemcpyDtoDAsync_v2)
  return submit(stream, [=] {
    std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), size);
  });
}
Result cuMemsetD8Async(Address to, unsigned char value, std::size_t size, StreamHandle stream) {
  return submit(stream, [=] { std::memset(reinterpret_cast<void*>(to), value, size); });
}
Result cuPointerGetAttributes(unsigned count, int* attributes, void** values, Address address) {
  FAKE(cuPointerGetAttributes)
  const std::lock_guard lock(mutex);
  const auto found = holder(address);
  for (unsigned i = 0; i < count; ++i) {
    // Host memory that the driver does not know has no type: attributes read as zero.
    const bool known = found != allocations.end();
    switch (attributes[i]) {
      case kPointerMemoryType:
        *static_cast<unsigned*>(values[i]) = !known                     ? 0
                                             : found->second.device < 0 ? kMemoryHost
                                                                        : kMemoryDevice;
        break;
      case kPointerDeviceOrdinal:
        *static_cast<int*>(values[i]) = known ? found->second.device : -2;
        break;
      default:
        *static_cast<unsigned*>(values[i]) = 0;
    }
  }
  return kSuccess;
}

Result cuIpcGetMemHandle(IpcHandle* handle, Address address) {
  FAKE(cuIpcGetMemHandle)
  const std::lock_guard lock(mutex);
  const auto found = allocations.find(address);
  if (found == allocations.end() || found->second.imported) return kInvalidValue;
  const std::int64_t words[] = {::getpid(), found->second.file.get(),
                                static_cast<std::int64_t>(found->second.size),
                                found->second.device};
  *handle = {};
  std::memcpy(handle->reserved, words, sizeof words);
  return kSuccess;
}
Result cuIpcOpenMemHandle_v2(Address* address, IpcHandle handle, unsigned) {
  FAKE(cuIpcOpenMemHandle_v2)
  std::int64_t words[4];
  std::memcpy(words, handle.reserved, sizeof words);
  if (words[0] == ::getpid()) return kInvalidContext;  // as the driver: not in the same process
  const std::string path = fmt::format("/proc/{}/fd/{}", words[0], words[1]);
  Allocation allocation;
  allocation.file = chorus::Fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!allocation.file) return kInvalidHandle;
  allocation.size = static_cast<std::size_t>(words[2]);
  allocation.device = static_cast<int>(words[3]);
  allocation.imported = true;
  void* const memory = ::mmap(nullptr, allocation.size, PROT_READ | PROT_WRITE, MAP_SHARED,
                              allocation.file.get(), 0);
  if (memory == MAP_FAILED) return kOutOfMemory;
  *address = reinterpret_cast<Address>(memory);
  const std::lock_guard lock(mutex);
  allocations[*address] = std::move(allocation);
  return kSuccess;
}
Result cuIpcCloseMemHandle(Address address) { return release(address); }

Result cuStreamCreate(StreamHandle* stream, unsigned flags) {
  FAKE(cuStreamCreate)
  *stream = new CUstream_st;
  (*stream)->blocking = (flags & kStreamNonBlocking) == 0;
  const std::lock_guard lock(mutex);
  if ((*stream)->blocking) streams.push_back(*stream);
  return kSuccess;
}
Result cuStreamDestroy_v2(StreamHandle stream) {
  if (stream == nullptr) return kInvalidHandle;
  {
    const std::lock_guard lock(mutex);
    std::erase(streams, stream);
  }
  delete stream;
  return kSuccess;
}
Result cuStreamSynchronize(StreamHandle stream) {
  FAKE(cuStreamSynchronize)
  if (stream_of(stream).capture != nullptr || spoils_capture()) return kCaptureUnsupported;
  stream_of(stream).drain();
  return kSuccess;
}
Result cuStreamQuery(StreamHandle stream) {
  return stream_of(stream).idle() ? kSuccess : kNotReady;
}
Result cuStreamWaitEvent(StreamHandle stream, EventHandle event, unsigned) {
  FAKE(cuStreamWaitEvent)
  if (event->capture != nullptr) {
    if (stream == nullptr) return kCaptureUnsupported;
    // The stream joins the capture; the graph is one line of operations, in the order of calls.
    if (stream->capture == nullptr) {
      stream->capture = event->capture;
      stream->mode = -1;
      event->capture->streams.push_back(stream);
    }
    return stream->capture == event->capture ? kSuccess : kCaptureInvalidated;
  }
  if (stream != nullptr && stream->capture != nullptr) {
    stream->capture->invalid = true;  // an event of outside
    return kCaptureInvalidated;
  }
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(event->mutex);
    number = event->recorded;
  }
  return submit(stream, [event, number] {
    std::unique_lock lock(event->mutex);
    event->changed.wait(lock, [&] { return event->completed >= number; });
  });
}
Result cuStreamIsCapturing(StreamHandle stream, int* capturing) {
  *capturing = stream != nullptr && stream->capture != nullptr ? 1 : kCaptureNone;
  return kSuccess;
}
Result cuStreamBeginCapture_v2(StreamHandle stream, int mode) {
  if (stream == nullptr) return kCaptureUnsupported;
  stream->capture = new CUgraph_st;
  stream->capture->streams.push_back(stream);
  stream->mode = mode;
  if (mode == kCaptureModeGlobal) ++global_captures;
  if (mode != kCaptureModeRelaxed) ++own_captures;
  return kSuccess;
}
Result cuStreamEndCapture(StreamHandle stream, Graph* graph) {
  *graph = stream->capture;
  if (stream->mode == kCaptureModeGlobal) --global_captures;
  if (stream->mode != kCaptureModeRelaxed) --own_captures;
  for (CUstream_st* member : (*graph)->streams) member->capture = nullptr;
  if (!(*graph)->invalid) return kSuccess;
  delete *graph;
  *graph = nullptr;
  return kCaptureInvalidated;
}
Result cuThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, capture_mode);
  return kSuccess;
}
Result cuGraphInstantiateWithFlags(GraphExec* exec, Graph graph, unsigned long long) {
  *exec = new CUgraphExec_st{graph->ops};
  return kSuccess;
}
Result cuGraphLaunch(GraphExec exec, StreamHandle stream) {
  const auto ops = std::make_shared<std::vector<Op>>(exec->ops);
  return submit(stream, [ops] {
    for (const Op& op : *ops) op();
  });
}
Result cuGraphDestroy(Graph graph) {
  delete graph;
  return kSuccess;
}
Result cuGraphExecDestroy(GraphExec exec) {
  delete exec;
  return kSuccess;
}

Result cuEventCreate(EventHandle* event, unsigned) {
  *event = new CUevent_st;
  return kSuccess;
}
Result cuEventDestroy_v2(EventHandle event) {
  // The driver keeps an event until what waits for it has been told; so do all who use it here.
  std::unique_lock lock(event->mutex);
  event->changed.wait(lock, [&] { return event->completed >= event->recorded; });
  lock.unlock();
  delete event;
  return kSuccess;
}
Result cuEventRecord(EventHandle event, StreamHandle stream) {
  FAKE(cuEventRecord)
  if (stream != nullptr && stream->capture != nullptr) {
    event->capture = stream->capture;
    return kSuccess;
  }
  event->capture = nullptr;
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(event->mutex);
    number = ++event->recorded;
  }
  return submit(stream, [event, number] {
    const std::lock_guard lock(event->mutex);
    event->completed = std::max(event->completed, number);
    event->changed.notify_all();
  });
}
Result cuEventQuery(EventHandle event) {
  const std::lock_guard lock(event->mutex);
  return event->completed >= event->recorded ? kSuccess : kNotReady;
}
Result cuEventSynchronize(EventHandle event) {
  FAKE(cuEventSynchronize)
  std::unique_lock lock(event->mutex);
  const std::uint64_t number = event->recorded;
  event->changed.wait(lock, [&] { return event->completed >= number; });
  return kSuccess;
}
Result cuEventElapsedTime(float* ms, EventHandle, EventHandle) {
  *ms = 0;
  return kSuccess;
}

}  // extern "C"
