// CUDA's driver, opened at run time; its handles as objects.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "device/driver/driver_api.hpp"

namespace chorus::cuda {

/// The driver, or null and the reason: no library, too old, no device. Opened at the first call.
[[nodiscard]] const Api* driver(std::string& why_not);
/// Throws DeviceError with the reason.
[[nodiscard]] const Api& driver();

/// Throws DeviceError: "rank …: cuMemAlloc of 4 MB: out of memory (CUDA_ERROR_OUT_OF_MEMORY)".
void check(Result result, std::string_view doing);
/// The driver's words.
[[nodiscard]] std::string describe(Result result);

/// A pointer of the caller's as the driver names memory.
[[nodiscard]] inline Address address_of(const void* memory) {
  return reinterpret_cast<Address>(memory);
}

/// A device's primary context, which the CUDA runtime uses too. While it lives, current_of() works.
class PrimaryContext {
 public:
  PrimaryContext() = default;
  explicit PrimaryContext(Device device);
  PrimaryContext(PrimaryContext&& other) noexcept { *this = std::move(other); }
  PrimaryContext& operator=(PrimaryContext&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(context_, other.context_);
    return *this;
  }
  ~PrimaryContext();
  [[nodiscard]] Context get() const { return context_; }

 private:
  Device device_ = -1;
  Context context_ = nullptr;
};

/// Makes a context this thread's current one for a scope, in which the thread is Relaxed, too.
class Current {
 public:
  explicit Current(Context context);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  int mode_;
};

/// Lets the thread do what would spoil a capture that is under way in another stream, for a scope.
class Relaxed {
 public:
  Relaxed();
  ~Relaxed();
  Relaxed(const Relaxed&) = delete;
  Relaxed& operator=(const Relaxed&) = delete;

 private:
  int mode_;
};

/// A context for calls that mostly need no other than the thread has: those on a stream that was
/// created take its context. It is made current when one fails without it, and stays so for the
/// scope. The thread does not get to do what Relaxed lets it.
class CurrentOnDemand {
 public:
  explicit CurrentOnDemand(Context context) : context_(context) {}
  ~CurrentOnDemand();
  CurrentOnDemand(const CurrentOnDemand&) = delete;
  CurrentOnDemand& operator=(const CurrentOnDemand&) = delete;

  /// Makes it current, if it is not: for what means another thing in another context, and for what
  /// must not fail first.
  void ensure();
  /// What `call` returns: as the thread is or, if that fails in another context, in this one.
  template <class Call>
  [[nodiscard]] Result attempt(const Call& call) {
    const Result result = call();
    if (result == kSuccess || ensured_) return result;
    ensure();
    return pushed_ ? call() : result;
  }

 private:
  Context context_;
  bool ensured_ = false;
  bool pushed_ = false;
};

/// What the objects below have in common: released once, moved by swapping.
template <class Handle, class Release>
class Owned {
 public:
  Owned() = default;
  explicit Owned(Handle handle) : handle_(handle) {}
  Owned(Owned&& other) noexcept : handle_(std::exchange(other.handle_, Handle{})) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Owned() {
    if (handle_ != Handle{}) Release()(handle_);
  }
  [[nodiscard]] Handle get() const { return handle_; }
  explicit operator bool() const { return handle_ != Handle{}; }
  void reset() { *this = Owned(); }
  /// Gives it up without releasing it.
  Handle release() { return std::exchange(handle_, Handle{}); }

 private:
  Handle handle_{};
};
struct FreeMemory {
  void operator()(Address address) const;
};
struct FreeHost {
  void operator()(void* memory) const;
};
struct UnregisterHost {
  void operator()(void* memory) const;
};
struct CloseIpc {
  void operator()(Address address) const;
};
struct DestroyStream {
  void operator()(StreamHandle stream) const;
};
struct DestroyEvent {
  void operator()(EventHandle event) const;
};
struct UnloadModule {
  void operator()(Module module) const;
};
// All but the context must be destroyed while their context is current.
using Memory = Owned<Address, FreeMemory>;
using PinnedMemory = Owned<void*, FreeHost>;
using RegisteredMemory = Owned<void*, UnregisterHost>;
using Mapped = Owned<Address, CloseIpc>;
using Stream = Owned<StreamHandle, DestroyStream>;
using Event = Owned<EventHandle, DestroyEvent>;
using LoadedModule = Owned<Module, UnloadModule>;

[[nodiscard]] Memory allocate(std::size_t size_bytes);
/// The same in whole blocks of 2 MiB, which begin where a page of the host's would: the driver cuts
/// smaller ones out of blocks that it keeps, aligned to 256 bytes, and adapters take pages alone.
[[nodiscard]] Memory allocate_pages(std::size_t size_bytes);
/// Memory for this GPU alone: peers and other processes do not reach it. Unlike allocate() it does
/// not wait for kernels that run, which may be waiting for the caller. `stream` is idle.
[[nodiscard]] Memory allocate_local(std::size_t size_bytes, StreamHandle stream);
/// Host memory, zeroed, that every device reaches; `address` is how.
[[nodiscard]] PinnedMemory allocate_pinned(std::size_t size_bytes, Address& address);
/// Pins memory that is there already: whole pages. It must stay until the result goes.
[[nodiscard]] RegisteredMemory register_pinned(void* memory, std::size_t size_bytes,
                                               Address& address);
[[nodiscard]] Stream make_stream();
/// Waits until the stream is idle. False after the timeout; throws DeviceError if it failed.
[[nodiscard]] bool finishes_within(const Api& api, StreamHandle stream, double timeout_s);
[[nodiscard]] Event make_event();

}  // namespace chorus::cuda
