// Memory for collectives, and buffers announced beforehand.
#include "chorus/memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "chorus/error.hpp"
#include "nccl/comm.hpp"
#include "nccl/log.hpp"
#include "nccl/window.hpp"

namespace chorus::nccl {
namespace {

/// Freed by whoever held it last: the caller, or a communicator whose other ranks reached it.
class Memory {
 public:
  /// Of GPU `device`; -1: of the host.
  Memory(std::size_t size_bytes, int device)
      : memory_(device < 0 ? chorus::allocate(size_bytes)
                           : DeviceCommunicator::allocate(device, size_bytes)),
        device_(device) {}
  ~Memory() {
    try {
      free();
    } catch (const Error& error) {
      warn(fmt::format("ncclMemFree: {}", error.what()));
    }
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  [[nodiscard]] void* get() const { return memory_; }
  /// Throws DeviceError.
  void free() {
    void* const memory = std::exchange(memory_, nullptr);
    if (memory == nullptr) return;
    if (device_ < 0) {
      chorus::deallocate(memory);
    } else {
      DeviceCommunicator::free(memory, device_);
    }
  }

 private:
  void* memory_;
  int device_;
};

/// What ncclMemAlloc gave out.
struct Block {
  std::shared_ptr<Memory> memory;
  std::size_t size_bytes = 0;
  int device = -1;  ///< -1: host memory
  /// The communicators whose other ranks reach it, or are about to.
  std::vector<std::weak_ptr<Body>> sharers = {};
};
struct Given {
  std::mutex mutex;
  std::map<void*, Block> blocks;  ///< by the address that the caller has

  using Entry = std::map<void*, Block>::value_type;
  /// The one that `memory` lies in, or null. With the mutex held.
  [[nodiscard]] Entry* holder(const void* memory) {
    auto next = blocks.upper_bound(const_cast<void*>(memory));
    if (next == blocks.begin()) return nullptr;
    --next;
    const auto offset =
        reinterpret_cast<std::uintptr_t>(memory) - reinterpret_cast<std::uintptr_t>(next->first);
    return offset < next->second.size_bytes ? &*next : nullptr;
  }
};

Given& given() {
  static Given* const the_given = new Given;
  return *the_given;
}

ncclResult_t allocate_memory(void** out, std::size_t size_bytes) {
  if (out == nullptr || size_bytes == 0) {
    refuse(ncclInvalidArgument, "{}",
           out == nullptr ? "the place for the pointer is null" : "0 bytes were asked for");
  }
  *out = nullptr;
  constexpr std::size_t kAlignment = NCCL_WIN_REQUIRED_ALIGNMENT;
  if (size_bytes > SIZE_MAX - kAlignment) {
    refuse(ncclInvalidArgument, "{} bytes are more than memory can hold", size_bytes);
  }
  // CUDA aligns small blocks to 256 bytes, windows begin at pages.
  const int device = DeviceCommunicator::why_not() ? -1 : current_device();
  std::size_t room = device < 0 ? size_bytes : size_bytes + kAlignment - 1;
  Block block{std::make_shared<Memory>(room, device), size_bytes, device};
  void* memory = block.memory->get();
  if (device >= 0) memory = std::align(kAlignment, size_bytes, memory, room);
  const std::lock_guard lock(given().mutex);
  given().blocks.emplace(memory, std::move(block));
  *out = memory;
  return ncclSuccess;
}

ncclResult_t free_memory(void* memory) {
  if (memory == nullptr) return ncclSuccess;
  Block block;
  {
    const std::lock_guard lock(given().mutex);
    const auto found = given().blocks.find(memory);
    if (found == given().blocks.end()) {
      refuse(ncclInvalidArgument, "{} was not given out by ncclMemAlloc, or freed before", memory);
    }
    block = std::move(found->second);
    given().blocks.erase(found);
  }
  if (block.sharers.empty()) block.memory->free();
  // Where others have it mapped, it is freed when they have let go of it: nobody waits for that.
  for (const auto& each : block.sharers) {
    if (const auto body = each.lock()) body->gpu->unshare(memory);
  }
  return ncclSuccess;
}

/// Host memory needs no registration: ranks of one host reach what ncclMemAlloc gave as it is. The
/// handle says that it was announced; whose memory it is the driver is not asked again. Nor is GPU
/// memory shared that is not from ncclMemAlloc: its owner may free it after ncclCommDeregister,
/// which would have to wait until others have let go of it, and they perhaps for this rank.
ncclResult_t announce(ncclComm& comm, void* buffer, std::size_t size_bytes, void** handle) {
  if (handle == nullptr || buffer == nullptr || size_bytes == 0) {
    refuse(ncclInvalidArgument, "{}: buffer, size and the place for the handle must be given",
           comm.who());
  }
  const auto body = in_order(comm);
  auto window = std::make_unique<Window>(Window{&comm, buffer, size_bytes});
  if (body->gpu) window->device = body->gpu->place(buffer).device;
  share_given(body, buffer);
  const std::lock_guard lock(comm.mutex);
  comm.registered.insert(window.get());
  comm.windows.emplace(reinterpret_cast<std::uintptr_t>(buffer), window.get());
  *handle = window.release();
  return ncclSuccess;
}

ncclResult_t withdraw(ncclComm& comm, void* handle) {
  if (handle == nullptr) return ncclSuccess;  // a window that was not to be had
  const std::lock_guard lock(comm.mutex);
  if (comm.registered.erase(handle) == 0) {
    refuse(ncclInvalidArgument,
           "{} is not registered with this communicator, or was deregistered before", handle);
  }
  std::erase_if(comm.windows, [handle](const auto& each) { return each.second == handle; });
  delete static_cast<Window*>(handle);
  return ncclSuccess;
}

ncclResult_t open_window(ncclComm& comm, void* buffer, std::size_t size_bytes, ncclWindow_t* out,
                         int flags) {
  if (out == nullptr) refuse(ncclInvalidArgument, "the place for the window is null");
  *out = nullptr;
  if (flags != NCCL_WIN_DEFAULT && flags != NCCL_WIN_COLL_SYMMETRIC) {
    refuse(ncclInvalidArgument, "{}: window flags {} do not exist", comm.who(), flags);
  }
  if (reinterpret_cast<std::uintptr_t>(buffer) % NCCL_WIN_REQUIRED_ALIGNMENT != 0) {
    refuse(ncclInvalidArgument,
           "{}: the buffer of a window must begin at a multiple of {} bytes, as those of "
           "ncclMemAlloc do",
           comm.who(), NCCL_WIN_REQUIRED_ALIGNMENT);
  }
  // Kernels dereference the handle of a symmetric window. Null says, as NVIDIA's library does, that
  // there are none here: programs then use the calls that take no window.
  const auto body = in_order(comm);
  if (flags == NCCL_WIN_COLL_SYMMETRIC && body->place(buffer).kind != MemoryKind::host) {
    return ncclSuccess;
  }
  void* handle = nullptr;
  (void)announce(comm, buffer, size_bytes, &handle);
  *out = static_cast<ncclWindow_t>(handle);
  return ncclSuccess;
}

}  // namespace

std::optional<MemoryPlace> known_place(ncclComm& comm, const void* memory) {
  const auto at = reinterpret_cast<std::uintptr_t>(memory);
  // The block that begins nearest before it; where blocks overlap, one that holds it may be missed.
  const auto place_in = [at](std::uintptr_t begin, std::size_t bytes, int device) {
    std::optional<MemoryPlace> place;
    if (device >= 0 && at - begin < bytes) {
      place = {.kind = MemoryKind::device, .device = device, .begin = begin, .end = begin + bytes};
    }
    return place;
  };
  {
    const std::lock_guard lock(comm.mutex);
    if (auto next = comm.windows.upper_bound(at); next != comm.windows.begin()) {
      const auto& [begin, window] = *--next;
      if (auto place = place_in(begin, window->size_bytes, window->device)) return place;
    }
  }
  const std::lock_guard lock(given().mutex);
  const auto* const holder = given().holder(memory);
  if (holder == nullptr) return std::nullopt;
  return place_in(reinterpret_cast<std::uintptr_t>(holder->first), holder->second.size_bytes,
                  holder->second.device);
}

void share_given(const std::shared_ptr<Body>& body, const void* memory) {
  if (!body->gpu || !body->gpu->can_share()) return;
  const std::lock_guard lock(given().mutex);
  auto* const holder = given().holder(memory);
  if (holder == nullptr || holder->second.device != body->device) return;
  Block& block = holder->second;
  const auto is_body = [&](const auto& each) {
    return !each.owner_before(body) && !body.owner_before(each);
  };
  if (std::any_of(block.sharers.begin(), block.sharers.end(), is_body)) return;
  std::erase_if(block.sharers, [](const auto& each) { return each.expired(); });
  block.sharers.push_back(body);
  body->gpu->share(holder->first, block.size_bytes, block.memory);
}

const Window& known_window(ncclComm& comm, ncclWindow_t window) {
  const std::lock_guard lock(comm.mutex);
  if (comm.registered.count(window) == 0) {
    refuse(ncclInvalidArgument, "{} is no window of this communicator", static_cast<void*>(window));
  }
  return *reinterpret_cast<const Window*>(window);
}

}  // namespace chorus::nccl

using namespace chorus::nccl;

extern "C" ncclResult_t pncclMemAlloc(void** ptr, size_t size) {
  return guarded("ncclMemAlloc", [&] { return allocate_memory(ptr, size); });
}
CHORUS_NCCL_EXPORT(MemAlloc);

extern "C" ncclResult_t pncclMemFree(void* ptr) {
  return guarded("ncclMemFree", [&] { return free_memory(ptr); });
}
CHORUS_NCCL_EXPORT(MemFree);

extern "C" ncclResult_t pncclCommRegister(const ncclComm_t comm, void* buff, size_t size,
                                          void** handle) {
  return guarded("ncclCommRegister", [&] { return announce(known(comm), buff, size, handle); });
}
CHORUS_NCCL_EXPORT(CommRegister);

extern "C" ncclResult_t pncclCommDeregister(const ncclComm_t comm, void* handle) {
  return guarded("ncclCommDeregister", [&] { return withdraw(known(comm), handle); });
}
CHORUS_NCCL_EXPORT(CommDeregister);

extern "C" ncclResult_t pncclCommWindowRegister(ncclComm_t comm, void* buff, size_t size,
                                                ncclWindow_t* win, int winFlags) {
  return guarded("ncclCommWindowRegister",
                 [&] { return open_window(known(comm), buff, size, win, winFlags); });
}
CHORUS_NCCL_EXPORT(CommWindowRegister);

extern "C" ncclResult_t pncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win) {
  return guarded("ncclCommWindowDeregister", [&] { return withdraw(known(comm), win); });
}
CHORUS_NCCL_EXPORT(CommWindowDeregister);
