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
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/files/fd.hpp"
#include "device/driver/driver_api.hpp"
#include "fake_cuda.hpp"

namespace fake {

using chorus::cuda::kInvalidValue;
using chorus::cuda::Result;

inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kInvalidDevice = 101;
inline constexpr Result kInvalidContext = 201;
inline constexpr Result kInvalidHandle = 400;
inline constexpr Result kNotFound = 500;
inline constexpr Result kIllegalAddress = 700;
inline constexpr Result kLaunchFailed = 719;
inline constexpr Result kNotSupported = 801;
inline constexpr Result kCaptureUnsupported = 900;
inline constexpr Result kCaptureInvalidated = 901;
inline constexpr Result kCaptureUnjoined = 904;
inline constexpr Result kCaptureIsolation = 905;
inline constexpr Result kCaptureImplicit = 906;
inline constexpr Result kCapturedEvent = 907;
inline constexpr Result kCaptureWrongThread = 908;

using Op = std::function<void()>;
/// One operation of a graph. Each launch of the graph makes it anew: an event's number is taken
/// then.
struct Node {
  std::function<Op()> make;
  std::vector<std::size_t> after;
};
enum class Kernel { few, many, ping, layout };

/// Operations that run one after another, in a thread of their own, which ends when the stream was
/// destroyed and all have run: destroying a stream does not wait for it.
class Queue : public std::enable_shared_from_this<Queue> {
 public:
  static std::shared_ptr<Queue> make();
  void push(Op op);
  void drain();
  [[nodiscard]] bool idle();
  void close();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Op> ops_;
  bool busy_ = false;
  bool closed_ = false;
};

}  // namespace fake

// The driver's handles.
struct CUctx_st {
  int ordinal = 0;
  std::mutex mutex;
  std::condition_variable changed;
  int resident = 0;
  int running = 0;  ///< kernels that have begun
  bool held = false;
  std::atomic<fake::Result> fault{chorus::cuda::kSuccess};  ///< what every call returns from now on
};
struct CUfunc_st {
  fake::Kernel kernel;
  CUctx_st* context = nullptr;
  std::atomic<bool> loaded{false};  ///< at its first launch
};
struct CUmod_st {
  CUctx_st* context = nullptr;
  CUfunc_st few{fake::Kernel::few};
  CUfunc_st many{fake::Kernel::many};
  CUfunc_st ping{fake::Kernel::ping};
  CUfunc_st layout{fake::Kernel::layout};
};
struct CUgraph_st {
  unsigned long long id = 0;
  std::vector<fake::Node> nodes;
  // While it is captured.
  CUstream_st* origin = nullptr;
  int mode = 0;
  std::thread::id thread;
  std::vector<CUstream_st*> streams;
  fake::Result invalid = chorus::cuda::kSuccess;
};
struct CUgraphExec_st {
  std::vector<fake::Node> nodes;
};

/// Kept when it is destroyed: the next stream that is created has the same handle.
struct CUstream_st {
  std::shared_ptr<fake::Queue> queue;
  CUctx_st* context = nullptr;
  bool blocking = false;
  bool legacy = false;  ///< the context's default stream
  CUgraph_st* capture = nullptr;
  std::vector<std::size_t> frontier;  ///< nodes that what is captured next comes after
};

struct CUevent_st {
  CUctx_st* context = nullptr;
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t recorded = 0;
  std::uint64_t completed = 0;
  std::chrono::steady_clock::time_point completed_at = {};
  unsigned long long capture = 0;    ///< the capture that it was last recorded in
  std::vector<std::size_t> nodes;    ///< of that
  std::shared_ptr<CUevent_st> self;  // until it is destroyed; streams that wait for it hold it, too
};

namespace fake {

struct Allocation {
  std::size_t size = 0;
  int device = -1;  // -1: pinned
  chorus::Fd file;
  bool imported = false;
  bool pool = false;  ///< of cuMemAllocAsync: neither peers nor other processes reach it
  std::uint64_t buffer_id = 0;
  std::uint64_t mapping = 0;  ///< what mmap() gave
  std::size_t mapped_size = 0;
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
extern std::vector<CUstream_st*> unused;   ///< handles of destroyed streams
extern std::atomic<int> multiprocessors;
extern std::atomic<int> compute_capability;  ///< 90 for 9.0
extern std::atomic<bool> allocation_waits;   ///< for kernels that run
extern std::atomic<int> runtime_device;      ///< of the CUDA runtime; -1: it is not loaded

/// What fake_cuda_last_launch() says.
[[nodiscard]] chorus::testing::FakeLaunch launch_before();

/// Counts a call of a function of the driver. Returns what it shall return, if not kSuccess.
[[nodiscard]] Result injected(const char* symbol);

/// The contexts that this thread has pushed.
[[nodiscard]] std::vector<CUctx_st*>& current();
/// What calls in this thread's context return: that there is none, or what has failed in it before.
[[nodiscard]] Result state_of_context();
/// All that uses `context` fails from now on, as after a kernel's illegal access.
void fault(CUctx_st& context, Result result, const std::string& why);
/// Waits until no kernel runs on the device, as loading and unloading code does. False after some
/// seconds: a kernel there waits for the caller, so nothing would ever go on.
[[nodiscard]] bool quiet(CUctx_st& context);

// Captures: how this thread takes what may not be done meanwhile.
[[nodiscard]] int exchange_capture_mode(int mode);
/// What may not be done while a capture is under way that this thread's mode does not permit. Then
/// the captures are invalid.
[[nodiscard]] bool spoils_capture();
/// The capture will end with `result`, which is returned.
Result invalidate(CUgraph_st& capture, Result result);
[[nodiscard]] Result finish_capture(CUstream_st& stream, CUgraph_st*& graph);

/// The stream that a handle stands for in this thread: the default ones are the current context's.
[[nodiscard]] Result find_stream(chorus::cuda::StreamHandle handle, CUstream_st*& stream);
/// Adds an operation to a stream, or to the graph that it is captured into.
[[nodiscard]] Result submit(CUstream_st* handle, Op op);
void add_node(CUstream_st& stream, std::function<Op()> make);
/// A graph's operations, each when those before it have ended, others at the same time.
[[nodiscard]] Op run_of(const std::vector<Node>& nodes);
[[nodiscard]] Op recording(CUevent_st& event);
[[nodiscard]] Op waiting(CUevent_st& event);
/// Device memory, or pinned (`ordinal` is -1). Small blocks begin at multiples of 256 bytes.
[[nodiscard]] Result allocate(std::size_t size, int ordinal, bool pool, std::uint64_t& address);
[[nodiscard]] std::uint64_t new_buffer_id();
[[nodiscard]] Result release(std::uint64_t address);
/// The allocation that holds `address`, with the mutex held.
[[nodiscard]] std::map<std::uint64_t, Allocation>::iterator holder(std::uint64_t address);
/// The driver knows every byte of it: one allocation, or one registration, holds all. True of
/// nothing.
[[nodiscard]] bool holds(std::uint64_t address, std::size_t size);
/// The device of memory that it knows.
[[nodiscard]] int device_of(std::uint64_t address);

/// The launch of a kernel that interprets `arguments` (fake_kernels.hpp), once `context` has room.
[[nodiscard]] Op launch(const CUfunc_st& function, CUctx_st& context, const void* arguments,
                        std::uint32_t blocks, std::uint32_t threads);

}  // namespace fake
