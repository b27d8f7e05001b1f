// The inside of the fake driver: what its functions (fake_cuda.cpp) work on.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/fd.hpp"
#include "device/driver_api.hpp"
#include "fake_cuda.hpp"

namespace fake {

using chorus::cuda::Result;

inline constexpr Result kInvalidValue = 1;
inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kInvalidDevice = 101;
inline constexpr Result kInvalidContext = 201;
inline constexpr Result kInvalidHandle = 400;
inline constexpr Result kNotFound = 500;
inline constexpr Result kNotSupported = 801;
inline constexpr Result kCaptureUnsupported = 900;
inline constexpr Result kCaptureInvalidated = 901;

using Op = std::function<void()>;
enum class Kernel { few, many, ping, layout };

}  // namespace fake

// The driver's handles.
struct CUctx_st {
  int ordinal = 0;
  std::mutex mutex;
  std::condition_variable changed;
  int resident = 0;
  bool held = false;
};
struct CUfunc_st {
  fake::Kernel kernel;
};
struct CUmod_st {
  CUfunc_st few{fake::Kernel::few};
  CUfunc_st many{fake::Kernel::many};
  CUfunc_st ping{fake::Kernel::ping};
  CUfunc_st layout{fake::Kernel::layout};
};
struct CUgraph_st {
  std::vector<fake::Op> ops;
  std::vector<CUstream_st*> streams;  // while it is captured
  bool invalid = false;
};
struct CUgraphExec_st {
  std::vector<fake::Op> ops;
};

struct CUstream_st {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<fake::Op> queue;
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
  void push(fake::Op op) {
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
      const fake::Op op = std::move(queue.front());
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
  std::chrono::steady_clock::time_point completed_at = {};
  CUgraph_st* capture = nullptr;
  std::shared_ptr<CUevent_st> self;  // until it is destroyed; streams that wait for it hold it, too
};

namespace fake {

struct Allocation {
  std::size_t size = 0;
  int device = -1;  // -1: pinned
  chorus::Fd file;
  bool imported = false;
};

/// Guards the allocations and the list of streams. Queues and events have their own.
extern std::mutex mutex;
extern std::map<std::uint64_t, Allocation> allocations;  ///< by address
extern std::map<std::uint64_t, std::size_t> registered;  ///< host memory: bytes by address
extern std::atomic<bool> peer_access;                    ///< between the devices
extern std::atomic<bool> damage;                         ///< of copies between them
extern std::atomic<bool> dmabuf_exports;
extern std::atomic<int> writes_ordering;       ///< kWritesOrdering
extern std::atomic<int> flush_writes_options;  ///< kFlushWritesOptions
/// Of fake_cuda_watch().
void tell_freed(std::uint64_t address);
void tell_flushed();
extern CUctx_st contexts[chorus::testing::kFakeDevices];
extern std::vector<CUstream_st*> streams;  ///< blocking ones

/// Counts a call of a function of the driver. Returns what it shall return, if not kSuccess.
[[nodiscard]] Result injected(const char* symbol);

/// The contexts that this thread has pushed.
[[nodiscard]] std::vector<CUctx_st*>& current();

// Captures: how this thread takes what may not be done meanwhile.
void begin_capture(int mode);
void end_capture(int mode);
[[nodiscard]] int exchange_capture_mode(int mode);
/// What may not be done while a capture is under way that this thread's mode does not permit.
[[nodiscard]] bool spoils_capture();

/// Adds an operation to a stream, or to the graph that it is captured into.
[[nodiscard]] Result submit(CUstream_st* handle, Op op);
/// The stream itself, or the default one.
[[nodiscard]] CUstream_st& stream_of(CUstream_st* handle);

/// Device memory, or pinned (`ordinal` is -1).
[[nodiscard]] Result allocate(std::size_t size, int ordinal, std::uint64_t& address);
[[nodiscard]] Result release(std::uint64_t address);
/// The allocation that holds `address`, with the mutex held.
[[nodiscard]] std::map<std::uint64_t, Allocation>::iterator holder(std::uint64_t address);
/// The driver knows every byte of it: one allocation, or one registration, holds all. True of
/// nothing.
[[nodiscard]] bool holds(std::uint64_t address, std::size_t size);
/// The device of memory that it knows.
[[nodiscard]] int device_of(std::uint64_t address);

/// The launch of a kernel that interprets `arguments`: its twin, once `context` has room.
[[nodiscard]] Op launch(const CUfunc_st& function, CUctx_st& context, const void* arguments,
                        std::uint32_t blocks);

}  // namespace fake
