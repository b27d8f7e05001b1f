#include "device/driver/driver.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <type_traits>

#include "chorus/error.hpp"

namespace chorus::cuda {
namespace {

struct Library {
  Api api{};
  std::string why_not;
};

Library open_library() {
  Library library;
  void* const handle = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    library.why_not = "libcuda.so.1 is not installed: there is no NVIDIA driver";
    return library;
  }
  const auto find = [&](const char* symbol, auto& function) {
    void* const found = ::dlsym(handle, symbol);
    if (found == nullptr && library.why_not.empty()) {
      library.why_not = fmt::format("libcuda.so.1 is too old: it has no {}", symbol);
    }
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
  };
#define CHORUS_CUDA_FIND(member, symbol, parameters) find(#symbol, library.api.member);
  CHORUS_CUDA_FUNCTIONS(CHORUS_CUDA_FIND)
  CHORUS_CUDA_OLDER_FUNCTIONS(CHORUS_CUDA_FIND)
#undef CHORUS_CUDA_FIND
#define CHORUS_CUDA_LOOK(member, symbol, parameters) \
  library.api.member = reinterpret_cast<decltype(library.api.member)>(::dlsym(handle, #symbol));
  CHORUS_CUDA_LATER_FUNCTIONS(CHORUS_CUDA_LOOK)
#undef CHORUS_CUDA_LOOK
  if (!library.why_not.empty()) return library;
  Result result = library.api.init(0);
  int devices = 0;
  if (result == kSuccess) result = library.api.device_count(&devices);
  if (result != kSuccess) {
    const char* text = nullptr;
    library.api.error_string(result, &text);
    library.why_not = fmt::format("CUDA's driver does not start: {}", text ? text : "?");
  } else if (devices == 0) {
    library.why_not = "CUDA's driver finds no GPU";
  }
  return library;
}

const Library& library() {
  static const Library opened = open_library();
  return opened;
}

}  // namespace

const Api* driver(std::string& why_not) {
  why_not = library().why_not;
  return why_not.empty() ? &library().api : nullptr;
}

const Api& driver() {
  if (!library().why_not.empty()) throw DeviceError(library().why_not);
  return library().api;
}

std::string describe(Result result) {
  const char* name = nullptr;
  const char* text = nullptr;
  driver().error_name(result, &name);
  driver().error_string(result, &text);
  return fmt::format("{} ({})", text ? text : "unknown error", name ? name : "?");
}

void check(Result result, std::string_view doing) {
  if (result != kSuccess) throw DeviceError(fmt::format("{}: {}", doing, describe(result)));
}

PrimaryContext::PrimaryContext(Device device) : device_(device) {
  check(driver().primary_retain(&context_, device), "using a GPU (cuDevicePrimaryCtxRetain)");
}

PrimaryContext::~PrimaryContext() {
  if (context_ != nullptr) driver().primary_release(device_);
}

Current::Current(Context context) : mode_(kCaptureModeRelaxed) {
  check(driver().context_push(context), "using a GPU (cuCtxPushCurrent)");
  driver().exchange_capture_mode(&mode_);
}

Current::~Current() {
  driver().exchange_capture_mode(&mode_);
  Context popped = nullptr;
  driver().context_pop(&popped);
}

Relaxed::Relaxed() : mode_(kCaptureModeRelaxed) { driver().exchange_capture_mode(&mode_); }
Relaxed::~Relaxed() { driver().exchange_capture_mode(&mode_); }

CurrentOnDemand::~CurrentOnDemand() {
  if (!pushed_) return;
  Context popped = nullptr;
  driver().context_pop(&popped);
}

void CurrentOnDemand::ensure() {
  if (ensured_) return;
  Context current = nullptr;
  static_cast<void>(driver().context_current(&current));  // failing, it leaves null: push
  if (current != context_) {
    check(driver().context_push(context_), "using a GPU (cuCtxPushCurrent)");
    pushed_ = true;
  }
  ensured_ = true;
}

// Failures to release have no remedy, and after a kernel has failed everything fails.
void FreeMemory::operator()(Address address) const { driver().free(address); }
void FreeHost::operator()(void* memory) const { driver().host_free(memory); }
void UnregisterHost::operator()(void* memory) const { driver().host_unregister(memory); }
void CloseIpc::operator()(Address address) const { driver().ipc_close(address); }
void DestroyStream::operator()(StreamHandle stream) const { driver().stream_destroy(stream); }
void DestroyEvent::operator()(EventHandle event) const { driver().event_destroy(event); }
void UnloadModule::operator()(Module module) const { driver().module_unload(module); }

Memory allocate(std::size_t size_bytes) {
  Address address = 0;
  check(driver().alloc(&address, size_bytes),
        fmt::format("allocating {} bytes of GPU memory", size_bytes));
  return Memory(address);
}

Memory allocate_pages(std::size_t size_bytes) {
  constexpr std::size_t kBlock = std::size_t{2} << 20;
  return allocate((size_bytes + kBlock - 1) / kBlock * kBlock);
}

Memory allocate_local(std::size_t size_bytes, StreamHandle stream) {
  if (driver().alloc_async == nullptr) return allocate(size_bytes);
  Address address = 0;
  check(driver().alloc_async(&address, size_bytes, stream),
        fmt::format("allocating {} bytes of GPU memory", size_bytes));
  Memory memory(address);
  check(driver().stream_synchronize(stream), "allocating GPU memory");
  return memory;
}

PinnedMemory allocate_pinned(std::size_t size_bytes, Address& address) {
  void* memory = nullptr;
  check(driver().host_alloc(&memory, size_bytes, kHostMapped),
        fmt::format("allocating {} bytes of pinned memory", size_bytes));
  PinnedMemory pinned(memory);
  std::memset(memory, 0, size_bytes);
  check(driver().host_address(&address, memory, 0), "mapping pinned memory");
  return pinned;
}

RegisteredMemory register_pinned(void* memory, std::size_t size_bytes, Address& address) {
  check(driver().host_register(memory, size_bytes, kHostMapped),
        fmt::format("pinning {} bytes", size_bytes));
  RegisteredMemory registered(memory);
  check(driver().host_address(&address, memory, 0), "mapping pinned memory");
  return registered;
}

Stream make_stream() {
  StreamHandle stream = nullptr;
  check(driver().stream_create(&stream, kStreamNonBlocking), "making a stream");
  return Stream(stream);
}

Event make_event() {
  EventHandle event = nullptr;
  check(driver().event_create(&event, kEventDisableTiming), "making an event");
  return Event(event);
}

bool finishes_within(const Api& api, StreamHandle stream, double timeout_s) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                      std::chrono::duration<double>(timeout_s));
  Result result = kNotReady;
  while ((result = api.stream_query(stream)) == kNotReady) {
    if (Clock::now() > end) return false;
    std::this_thread::yield();
  }
  check(result, "copying between GPUs");
  return true;
}

}  // namespace chorus::cuda
