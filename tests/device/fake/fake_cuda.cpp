// The driver's functions, as its header declares them.
#include "fake_cuda.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>

#include "device/layout.hpp"
#include "fake_driver.hpp"
#include "fake_kernels.hpp"

using namespace chorus::cuda;
using namespace fake;
namespace device = chorus::device;

#define FAKE(symbol)                                                 \
  if (const Result failed = injected(#symbol); failed != kSuccess) { \
    return failed;                                                   \
  }
// Of a function that needs a context, and fails with it.
#define FAKE_IN_CONTEXT(symbol)                                     \
  FAKE(symbol)                                                      \
  if (const Result state = state_of_context(); state != kSuccess) { \
    return state;                                                   \
  }
// And is not for threads whose captures, or all of whose captures, forbid it.
#define FAKE_UNSAFE(symbol)     \
  FAKE_IN_CONTEXT(symbol)       \
  if (spoils_capture()) {       \
    return kCaptureUnsupported; \
  }

namespace {

// Of a block of memory, that another one under the same descriptor has not.
std::int64_t inode_of(int file) {
  struct stat status = {};
  return ::fstat(file, &status) == 0 ? static_cast<std::int64_t>(status.st_ino) : -1;
}

struct flock whole_file(int type) {
  struct flock lock = {};
  lock.l_type = static_cast<short>(type);
  return lock;
}

std::atomic<int> frees_of_mapped{0};

// Whoever has it mapped holds a lock on its file.
void count_free(Address address) {
  const std::lock_guard lock(mutex);
  const auto found = allocations.find(address);
  if (found == allocations.end() || !found->second.file) return;
  struct flock mark = whole_file(F_WRLCK);
  if (::fcntl(found->second.file.get(), F_OFD_GETLK, &mark) == 0 && mark.l_type != F_UNLCK) {
    ++frees_of_mapped;
  }
}

}  // namespace

extern "C" {

// Of the CUDA runtime, which knows a thread's device before there is a context.
int cudaGetDevice(int* device) {
  *device = runtime_device;
  return runtime_device < 0 ? 100 : 0;
}

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
          : result == kIllegalAddress     ? "CUDA_ERROR_ILLEGAL_ADDRESS"
          : result == kNoBinaryForGpu     ? "CUDA_ERROR_NO_BINARY_FOR_GPU"
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
      *value = multiprocessors;
      break;
    case kComputeMajor:
      *value = compute_capability / 10;
      break;
    case kComputeMinor:
      *value = compute_capability % 10;
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
  FAKE(cuDevicePrimaryCtxRetain)
  if (ordinal < 0 || ordinal >= chorus::testing::kFakeDevices) return kInvalidDevice;
  *context = &contexts[ordinal];
  return kSuccess;
}
Result cuDevicePrimaryCtxRelease_v2(Device) {
  FAKE(cuDevicePrimaryCtxRelease_v2)
  return kSuccess;
}
Result cuCtxGetId(Context context, unsigned long long* id) {
  *id = static_cast<unsigned long long>(context->ordinal) + 1;
  return kSuccess;
}
Result cuCtxPushCurrent_v2(Context context) {
  FAKE(cuCtxPushCurrent_v2)
  current().push_back(context);
  return kSuccess;
}
Result cuCtxPopCurrent_v2(Context* context) {
  FAKE(cuCtxPopCurrent_v2)
  if (current().empty()) return kInvalidContext;
  *context = current().back();
  current().pop_back();
  return kSuccess;
}
Result cuCtxGetCurrent(Context* context) {
  FAKE(cuCtxGetCurrent)
  *context = current().empty() ? nullptr : current().back();
  return kSuccess;
}
Result cuCtxGetDevice(Device* ordinal) {
  FAKE(cuCtxGetDevice)
  if (current().empty()) return kInvalidContext;
  *ordinal = current().back()->ordinal;
  return kSuccess;
}
Result cuCtxEnablePeerAccess(Context, unsigned) { return kSuccess; }

Result cuModuleLoadData(Module* module, const void*) {
  FAKE_UNSAFE(cuModuleLoadData)
  if (compute_capability < 75) return kNoBinaryForGpu;
  if (!quiet(*current().back())) return kLaunchFailed;
  *module = new CUmod_st;
  (*module)->context = current().back();
  for (CUfunc_st* const each :
       {&(*module)->few, &(*module)->many, &(*module)->ping, &(*module)->layout}) {
    each->context = (*module)->context;
  }
  return kSuccess;
}
Result cuModuleUnload(Module module) {
  FAKE_UNSAFE(cuModuleUnload)
  if (!quiet(*current().back())) return kLaunchFailed;
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
  Result state = state_of_context();
  if (state == kSuccess) {  // a stream of another GPU than the thread's, or another GPU's code
    const bool strange = !is_default(stream) && stream->context != current().back();
    if (strange || function->context != current().back()) state = kInvalidHandle;
  }
  if (state != kSuccess) {
    const bool capturing = !is_default(stream) && stream->capture != nullptr;
    return capturing ? invalidate(*stream->capture, state) : state;
  }
  // Code is loaded lazily, when no other kernel runs.
  if (!function->loaded.exchange(true) && !quiet(*current().back())) return kLaunchFailed;
  if (function->kernel == Kernel::layout) {
    auto* const hash = *static_cast<std::uint64_t* const*>(parameters[0]);
    return submit(stream, [hash] { *hash = device::layout_hash(); });
  }
  if (threads == 0 || threads > device::kThreads || threads % 32 != 0 || blocks == 0) {
    return kInvalidValue;
  }
  if (function->kernel == Kernel::ping) return submit(stream, [] {});
  return submit(stream, launch(*function, *current().back(), parameters[0], blocks, threads));
}

Result cuMemAlloc_v2(Address* address, std::size_t size) {
  FAKE_UNSAFE(cuMemAlloc_v2)
  if (allocation_waits && !quiet(*current().back())) return kLaunchFailed;
  std::uint64_t found = 0;
  const Result result = allocate(size, current().back()->ordinal, false, found);
  *address = found;
  return result;
}
Result cuMemAllocAsync(Address* address, std::size_t size, StreamHandle stream) {
  FAKE_IN_CONTEXT(cuMemAllocAsync)
  if (!is_default(stream) && stream->capture != nullptr) return kCaptureUnsupported;
  std::uint64_t found = 0;
  const Result result = allocate(size, current().back()->ordinal, true, found);
  *address = found;
  return result;
}
Result cuMemFree_v2(Address address) {
  FAKE_UNSAFE(cuMemFree_v2)
  if (allocation_waits && !quiet(*current().back())) return kLaunchFailed;
  count_free(address);
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
  FAKE_IN_CONTEXT(cuFlushGPUDirectRDMAWrites)
  if (target != kFlushCurrentContext || scope < kFlushToOwner || flush_writes_options == 0) {
    return kInvalidValue;
  }
  tell_flushed();
  return kSuccess;
}
Result cuMemGetAddressRange_v2(Address* base, std::size_t* size, Address address) {
  FAKE_IN_CONTEXT(cuMemGetAddressRange_v2)
  const std::lock_guard lock(mutex);
  const auto found = holder(address);
  if (found == allocations.end()) return kInvalidValue;
  *base = found->first;
  *size = found->second.size;
  return kSuccess;
}
Result cuMemHostAlloc(void** memory, std::size_t size, unsigned) {
  FAKE_UNSAFE(cuMemHostAlloc)
  std::uint64_t address = 0;
  const Result result = allocate(size, -1, false, address);
  *memory = reinterpret_cast<void*>(address);
  return result;
}
Result cuMemHostRegister_v2(void* memory, std::size_t size, unsigned) {
  FAKE_UNSAFE(cuMemHostRegister_v2)
  if (size == 0) return kInvalidValue;
  memory_is_new(reinterpret_cast<std::uint64_t>(memory), size);
  const std::lock_guard lock(mutex);
  const bool is_new = registered.try_emplace(reinterpret_cast<std::uint64_t>(memory), size).second;
  return is_new ? kSuccess : kInvalidValue;
}
Result cuMemHostUnregister(void* memory) {
  FAKE_UNSAFE(cuMemHostUnregister)
  const std::lock_guard lock(mutex);
  return registered.erase(reinterpret_cast<std::uint64_t>(memory)) == 1 ? kSuccess : kInvalidValue;
}
Result cuMemFreeHost(void* memory) {
  FAKE_UNSAFE(cuMemFreeHost)
  return release(reinterpret_cast<std::uint64_t>(memory));
}
Result cuMemHostGetDevicePointer_v2(Address* address, void* memory, unsigned) {
  *address = reinterpret_cast<Address>(memory);
  return kSuccess;
}
Result cuMemcpyHtoDAsync_v2(Address to, const void* from, std::size_t size, StreamHandle stream) {
  FAKE_IN_CONTEXT(cuMemcpyHtoDAsync_v2)
  if (!holds(to, size)) return kInvalidValue;
  // Pageable memory is read before the call returns.
  std::vector<char> data(static_cast<const char*>(from), static_cast<const char*>(from) + size);
  return submit(stream, [to, data = std::move(data)] {
    std::copy(data.begin(), data.end(), reinterpret_cast<char*>(to));
  });
}
Result cuMemcpyDtoHAsync_v2(void* to, Address from, std::size_t size, StreamHandle stream) {
  FAKE_IN_CONTEXT(cuMemcpyDtoHAsync_v2)
  if (!holds(from, size)) return kInvalidValue;
  return submit(stream, [=] {
    std::copy_n(reinterpret_cast<const char*>(from), size, static_cast<char*>(to));
  });
}
Result cuMemcpyDtoDAsync_v2(Address to, Address from, std::size_t size, StreamHandle stream) {
  FAKE_IN_CONTEXT(cuMemcpyDtoDAsync_v2)
  if (!holds(to, size) || !holds(from, size)) return kInvalidValue;
  const bool damaged = damage && size > 0 && device_of(to) != device_of(from);
  return submit(stream, [=] {
    std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), size);
    if (damaged) reinterpret_cast<char*>(to)[size / 2] ^= 1;
  });
}
Result cuMemsetD8Async(Address to, unsigned char value, std::size_t size, StreamHandle stream) {
  FAKE_IN_CONTEXT(cuMemsetD8Async)
  if (!holds(to, size)) return kInvalidValue;
  return submit(stream, [=] { std::memset(reinterpret_cast<void*>(to), value, size); });
}
Result cuPointerGetAttributes(unsigned count, int* attributes, void** values, Address address) {
  FAKE_IN_CONTEXT(cuPointerGetAttributes)
  const std::lock_guard lock(mutex);
  const auto found = holder(address);
  for (unsigned i = 0; i < count; ++i) {
    // Host memory that the driver does not know has no type: attributes read as zero.
    const bool known = found != allocations.end();
    const bool on_device = known && found->second.device >= 0;
    switch (attributes[i]) {
      case kPointerMemoryType:
        *static_cast<unsigned*>(values[i]) = !known ? 0 : on_device ? kMemoryDevice : kMemoryHost;
        break;
      case kPointerDeviceOrdinal:
        *static_cast<int*>(values[i]) = known ? found->second.device : -2;
        break;
      case kPointerBufferId:
        *static_cast<std::uint64_t*>(values[i]) = known ? found->second.buffer_id : 0;
        break;
      case kPointerRangeStart:
        *static_cast<Address*>(values[i]) = known ? found->first : 0;
        break;
      case kPointerRangeSize:
        *static_cast<std::size_t*>(values[i]) = known ? found->second.size : 0;
        break;
      case kPointerIpcCapable:
        *static_cast<unsigned*>(values[i]) = on_device && !found->second.pool ? 1 : 0;
        break;
      default:
        *static_cast<unsigned*>(values[i]) = 0;
    }
  }
  return kSuccess;
}

Result cuIpcGetMemHandle(IpcHandle* handle, Address address) {
  FAKE_IN_CONTEXT(cuIpcGetMemHandle)
  const std::lock_guard lock(mutex);
  const auto found = allocations.find(address);
  if (found == allocations.end() || found->second.imported || found->second.pool) {
    return kInvalidValue;
  }
  const std::int64_t words[] = {::getpid(),
                                found->second.file.get(),
                                static_cast<std::int64_t>(found->second.size),
                                found->second.device,
                                static_cast<std::int64_t>(address - found->second.mapping),
                                inode_of(found->second.file.get())};
  *handle = {};
  std::memcpy(handle->reserved, words, sizeof words);
  return kSuccess;
}
Result cuIpcOpenMemHandle_v2(Address* address, IpcHandle handle, unsigned) {
  FAKE_UNSAFE(cuIpcOpenMemHandle_v2)
  std::int64_t words[6];
  std::memcpy(words, handle.reserved, sizeof words);
  if (words[0] == ::getpid()) return kInvalidContext;  // as the driver: not in the same process
  if (allocation_waits && !quiet(*current().back())) return kLaunchFailed;
  const std::string path = fmt::format("/proc/{}/fd/{}", words[0], words[1]);
  Allocation allocation;
  allocation.file = chorus::Fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!allocation.file || inode_of(allocation.file.get()) != words[5]) return kInvalidHandle;
  // Seen by the owner when it frees the memory: cuMemFree().
  struct flock mark = whole_file(F_RDLCK);
  ::fcntl(allocation.file.get(), F_OFD_SETLK, &mark);
  allocation.size = static_cast<std::size_t>(words[2]);
  allocation.device = static_cast<int>(words[3]);
  allocation.imported = true;
  allocation.buffer_id = new_buffer_id();
  allocation.mapped_size = static_cast<std::size_t>(words[2] + words[4]);
  void* const memory = ::mmap(nullptr, allocation.mapped_size, PROT_READ | PROT_WRITE, MAP_SHARED,
                              allocation.file.get(), 0);
  if (memory == MAP_FAILED) return kOutOfMemory;
  allocation.mapping = reinterpret_cast<std::uint64_t>(memory);
  *address = allocation.mapping + static_cast<std::uint64_t>(words[4]);
  memory_is_new(*address, allocation.size);
  const std::lock_guard lock(mutex);
  allocations[*address] = std::move(allocation);
  return kSuccess;
}
Result cuIpcCloseMemHandle(Address address) {
  FAKE_UNSAFE(cuIpcCloseMemHandle)
  if (allocation_waits && !quiet(*current().back())) return kLaunchFailed;
  return release(address);
}

}  // extern "C"

int chorus::testing::fake_cuda_frees_of_mapped() { return frees_of_mapped; }
