// The driver's functions, as its header declares them.
#include "fake_cuda.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>

#include "device/layout.hpp"
#include "fake_driver.hpp"

using namespace chorus::cuda;
using namespace fake;
namespace device = chorus::device;

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
  switch (attribute) {
    case kMultiprocessorCount:
      *value = chorus::testing::kFakeMultiprocessors;
      break;
    case kWritesOrdering:
      *value = writes_ordering;
      break;
    case kFlushWritesOptions:
      *value = flush_writes_options;
      break;
    case kDmabufSupported:
      *value = dmabuf_exports ? 1 : 0;
      break;
    default:
      *value = 9;
  }
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
  *can = peer_access ? 1 : 0;
  return kSuccess;
}
Result cuDevicePrimaryCtxRetain(Context* context, Device ordinal) {
  if (ordinal < 0 || ordinal >= chorus::testing::kFakeDevices) return kInvalidDevice;
  *context = &contexts[ordinal];
  return kSuccess;
}
Result cuDevicePrimaryCtxRelease_v2(Device) { return kSuccess; }
Result cuCtxPushCurrent_v2(Context context) {
  current().push_back(context);
  return kSuccess;
}
Result cuCtxPopCurrent_v2(Context* context) {
  if (current().empty()) return kInvalidContext;
  *context = current().back();
  current().pop_back();
  return kSuccess;
}
Result cuCtxGetCurrent(Context* context) {
  *context = current().empty() ? nullptr : current().back();
  return kSuccess;
}
Result cuCtxGetDevice(Device* ordinal) {
  if (current().empty()) return kInvalidContext;
  *ordinal = current().back()->ordinal;
  return kSuccess;
}
Result cuCtxEnablePeerAccess(Context, unsigned) { return kSuccess; }

Result cuModuleLoadData(Module* module, const void*) {
  FAKE(cuModuleLoadData)
  if (current().empty()) return kInvalidContext;
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
  if (current().empty()) return kInvalidContext;
  if (function->kernel == Kernel::layout) {
    auto* const hash = *static_cast<std::uint64_t* const*>(parameters[0]);
    return submit(stream, [hash] { *hash = device::layout_hash(); });
  }
  if (threads == 0 || threads > device::kThreads || threads % 32 != 0 || blocks == 0) {
    return kInvalidValue;
  }
  if (function->kernel == Kernel::ping) return submit(stream, [] {});
  return submit(stream, launch(*function, *current().back(), parameters[0], blocks));
}

Result cuMemAlloc_v2(Address* address, std::size_t size) {
  FAKE(cuMemAlloc_v2)
  if (current().empty()) return kInvalidContext;
  if (spoils_capture()) return kCaptureUnsupported;
  std::uint64_t found = 0;
  const Result result = allocate(size, current().back()->ordinal, found);
  *address = found;
  return result;
}
Result cuMemFree_v2(Address address) {
  FAKE(cuMemFree_v2)
  if (spoils_capture()) return kCaptureUnsupported;
  tell_freed(address);
  return release(address);
}
Result cuMemGetHandleForAddressRange(void* handle, Address address, std::size_t size, int kind,
                                     unsigned long long flags) {
  FAKE(cuMemGetHandleForAddressRange)
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  if (!dmabuf_exports) return kNotSupported;
  if (kind != kRangeDmabuf || flags != 0 || address % page != 0 || size % page != 0) {
    return kInvalidValue;
  }
  const std::lock_guard lock(mutex);
  const auto found = allocations.find(address);
  if (found == allocations.end() || found->second.device < 0 || size > found->second.size) {
    return kInvalidValue;
  }
  *static_cast<int*>(handle) = ::fcntl(found->second.file.get(), F_DUPFD_CLOEXEC, 0);
  return kSuccess;
}
Result cuFlushGPUDirectRDMAWrites(int target, int scope) {
  FAKE(cuFlushGPUDirectRDMAWrites)
  if (current().empty()) return kInvalidContext;
  if (target != kFlushCurrentContext || scope < kFlushToOwner || flush_writes_options == 0) {
    return kInvalidValue;
  }
  tell_flushed();
  return kSuccess;
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
Result cuMemHostRegister_v2(void* memory, std::size_t size, unsigned) {
  FAKE(cuMemHostRegister_v2)
  const std::lock_guard lock(mutex);
  if (size == 0) return kInvalidValue;
  const bool is_new = registered.try_emplace(reinterpret_cast<std::uint64_t>(memory), size).second;
  return is_new ? kSuccess : kInvalidValue;
}
Result cuMemHostUnregister(void* memory) {
  const std::lock_guard lock(mutex);
  return registered.erase(reinterpret_cast<std::uint64_t>(memory)) == 1 ? kSuccess : kInvalidValue;
}
Result cuMemFreeHost(void* memory) { return release(reinterpret_cast<std::uint64_t>(memory)); }
Result cuMemHostGetDevicePointer_v2(Address* address, void* memory, unsigned) {
  *address = reinterpret_cast<Address>(memory);
  return kSuccess;
}
Result cuMemcpyHtoDAsync_v2(Address to, const void* from, std::size_t size, StreamHandle stream) {
  FAKE(cuMemcpyHtoDAsync_v2)
  if (!holds(to, size)) return kInvalidValue;
  // Pageable memory is read before the call returns.
  std::vector<char> data(static_cast<const char*>(from), static_cast<const char*>(from) + size);
  return submit(stream, [to, data = std::move(data)] {
    std::copy(data.begin(), data.end(), reinterpret_cast<char*>(to));
  });
}
Result cuMemcpyDtoHAsync_v2(void* to, Address from, std::size_t size, StreamHandle stream) {
  FAKE(cuMemcpyDtoHAsync_v2)
  if (!holds(from, size)) return kInvalidValue;
  return submit(stream, [=] {
    std::copy_n(reinterpret_cast<const char*>(from), size, static_cast<char*>(to));
  });
}
Result cuMemcpyDtoDAsync_v2(Address to, Address from, std::size_t size, StreamHandle stream) {
  FAKE(cuMemcpyDtoDAsync_v2)
  if (!holds(to, size) || !holds(from, size)) return kInvalidValue;
  const bool damaged = damage && size > 0 && device_of(to) != device_of(from);
  return submit(stream, [=] {
    std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), size);
    if (damaged) reinterpret_cast<char*>(to)[size / 2] ^= 1;
  });
}
Result cuMemsetD8Async(Address to, unsigned char value, std::size_t size, StreamHandle stream) {
  if (!holds(to, size)) return kInvalidValue;
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
  return submit(stream, [event = event->self, number] {
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
  begin_capture(mode);
  return kSuccess;
}
Result cuStreamEndCapture(StreamHandle stream, Graph* graph) {
  *graph = stream->capture;
  end_capture(stream->mode);
  for (CUstream_st* member : (*graph)->streams) member->capture = nullptr;
  if (!(*graph)->invalid) return kSuccess;
  delete *graph;
  *graph = nullptr;
  return kCaptureInvalidated;
}
Result cuThreadExchangeStreamCaptureMode(int* mode) {
  *mode = exchange_capture_mode(*mode);
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
  const auto made = std::make_shared<CUevent_st>();
  made->self = made;
  *event = made.get();
  return kSuccess;
}
Result cuEventDestroy_v2(EventHandle event) {
  const std::shared_ptr<CUevent_st> last = std::move(event->self);
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
  return submit(stream, [event = event->self, number] {
    const std::lock_guard lock(event->mutex);
    event->completed = std::max(event->completed, number);
    event->completed_at = std::chrono::steady_clock::now();
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
Result cuEventElapsedTime(float* ms, EventHandle begin, EventHandle end) {
  const std::scoped_lock lock(begin->mutex, end->mutex);
  if (begin->completed < begin->recorded || end->completed < end->recorded) return kNotReady;
  *ms = std::chrono::duration<float, std::milli>(end->completed_at - begin->completed_at).count();
  return kSuccess;
}

}  // extern "C"
