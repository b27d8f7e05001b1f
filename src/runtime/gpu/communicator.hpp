// Collectives over GPU memory, ordered on CUDA streams: what the C API stands on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "chorus/communicator.hpp"

namespace chorus {

/// One call and the stream it is ordered on.
struct DeviceCall {
  /// As for Communicator::start(), with memory that the GPU can access. all_to_all_v is not taken:
  /// a group of sends and receives is the same.
  Call call;
  /// A CUstream (a cudaStream_t is the same); null: the legacy default stream.
  void* stream = nullptr;
  /// Where the factor of a scaled sum lies in memory that the GPU can access: one element of
  /// call.type, read when the call runs. Null: call.reduction.scale.
  const void* scale_at = nullptr;
  /// The schedule that a collective takes in place of the selected one: a name of the
  /// communicator's plan or of `chorus algorithms`. Empty: the selected one.
  std::string schedule = {};
  /// The caller has seen by place(), or knows, that the GPU reaches the buffers and the factor, and
  /// that memory which it has shared is the same still: the driver is asked again only where ranks
  /// are threads with a GPU each, which might use the buffers, too.
  bool checked = false;
  /// A CUevent, recorded on the stream when the calls before have been launched; or null.
  void* launch_event = nullptr;
};

/// What a pointer is to the driver.
enum class MemoryKind {
  host,     ///< ordinary memory: the GPU cannot access it
  pinned,   ///< host memory that the GPU can access
  device,   ///< memory of the GPU `device`
  managed,  ///< wanders
};
struct MemoryPlace {
  MemoryKind kind = MemoryKind::host;
  int device = -1;  ///< ordinal; -1 for host memory
  /// Other GPUs reach it by peer access: memory of cuMemAlloc (cudaMalloc), not of pools
  /// (cudaMallocAsync) and not of cuMemMap, whose owner decides who reaches it.
  bool peers_reach = false;
  std::uint64_t buffer = 0;  ///< a number that no other block of memory has had in this process
  /// Where the block lies, if peers_reach: all of it is of this kind.
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
};

/// Which way calls go, by size. All ranks must have the same.
struct DeviceTuning {
  /// Messages of at most so many bytes go by flagged words (docs/transports/cuda.md).
  std::size_t words_bytes = 8 * 1024;
  /// Calls on at least so many bytes fold straight from and into the users' buffers, where all
  /// ranks reach those of all.
  std::size_t direct_bytes = 256 * 1024;
  /// False: no rank touches another's GPU memory, messages go through host memory and the links of
  /// the communicator, as they do between hosts and between GPUs without peer access.
  bool reach = true;
  int blocks = 0;     ///< of one launch; 0: so many that all ranks' fit onto the GPU twice
  int instances = 0;  ///< copies of a program that take tiles in turn, at most; 0: one per block
};

/// A Communicator's ranks, each with a GPU. Several ranks may share one; ranks that cannot reach
/// each other's memory, on other hosts or without peer access, exchange through pinned host memory
/// and the communicator's transports (one more thread then, which carries).
///
/// enqueue() returns when the work is in the stream: nothing is allocated, synchronized or copied
/// by the host after the first call of a shape (kind, root, size class). All of it may be captured
/// into CUDA graphs, the first call too; what graphs and streams run of one communicator runs in
/// the order in which it was enqueued or launched. All ranks make the same calls in the same order.
///
/// One thread at a time, except abort() and error(). Uses one thread of its own, which watches for
/// ranks that die, fail or abort; the communicator must outlive this object and may be used
/// meanwhile for calls on host memory.
class CHORUS_API DeviceCommunicator {
 public:
  /// Why no GPU can be used by this process, as a sentence ("libcuda.so.1 is not installed");
  /// nothing if one can.
  [[nodiscard]] static std::optional<std::string> why_not();
  /// Why a communicator cannot be on GPU `device`: the same, that GPU, or the kernels.
  [[nodiscard]] static std::optional<std::string> why_not(int device);
  /// The calling thread's current device: of its context, or else of the CUDA runtime, if that is
  /// loaded (before 12.0, cudaSetDevice makes no context). -1 where it has none.
  [[nodiscard]] static int current_device();
  /// Memory that no GPU knows is host memory. The driver is asked in the context of GPU `device`,
  /// whatever the thread's is. Throws DeviceError where it fails, as it does in every call once a
  /// kernel in that context has faulted.
  [[nodiscard]] static MemoryPlace place_of(const void* memory, int device);
  /// Memory of GPU `device` (ncclMemAlloc). Throws DeviceError.
  [[nodiscard]] static void* allocate(int device, std::size_t size_bytes);
  /// Of allocate(), by the same device. Throws InputError for what is none of its memory.
  static void free(void* memory, int device);

  /// Collective over all ranks of `communicator`, each naming the ordinal of its GPU. Throws
  /// InputError where why_not() says so or `device` does not exist, TopologyError naming two ranks
  /// that no transport connects either, with the reason.
  DeviceCommunicator(Communicator& communicator, int device, const DeviceTuning& tuning = {});
  /// Waits until what was enqueued has run (or failed). Not collective, but all ranks must have
  /// finished their calls before any rank's memory goes: it waits for the others' goodbye, and
  /// not after a failure.
  ~DeviceCommunicator();
  DeviceCommunicator(const DeviceCommunicator&) = delete;
  DeviceCommunicator& operator=(const DeviceCommunicator&) = delete;

  [[nodiscard]] int device() const;

  /// place_of(memory, device()), without taking the context anew. From any thread.
  [[nodiscard]] MemoryPlace place(const void* memory) const;

  /// Enqueues one call. Throws InputError for arguments that can be judged locally (host memory,
  /// memory of another GPU, null where data is needed), CollectiveError once the communicator has
  /// failed.
  void enqueue(const DeviceCall& call) { enqueue(std::span(&call, 1)); }
  /// Enqueues a group of any size: its sends and receives cannot block each other, its collectives
  /// run in their order. If it names several streams, it begins when all have come so far and all
  /// go on when it is done.
  void enqueue(std::span<const DeviceCall> group);

  /// Waits until all that was enqueued has run, in graphs too, or was ended by a failure.
  void finish() const;

  /// Lets the others reach `size_bytes` of this rank's GPU memory, so that large calls on it go
  /// without copies where ranks are processes (threads of one process reach each other's memory
  /// anyway). Not collective, and waits for nobody: calls use it once all others have mapped it,
  /// and all their buffers are shared, too. From any thread.
  ///
  /// The memory must come from cuMemAlloc (cudaMalloc, allocate()), and stay until this object has
  /// gone on all ranks; or until `keep` is destroyed, which is held until no other rank reaches the
  /// memory. False where it is of no use: no such memory, 64 blocks are shared already, ranks are
  /// threads, or some cannot reach each other.
  bool share(void* memory, std::size_t size_bytes, std::shared_ptr<void> keep = {});
  /// Whether share() may be of use at all. From any thread.
  [[nodiscard]] bool can_share() const;
  /// Whether calls use it, memory that share() was given.
  [[nodiscard]] bool is_shared(const void* memory) const;
  /// Calls to come do not use what share() was given with this address. Others reach it for a while
  /// yet: when what was enqueued has run, they let go of it. Waits for nobody. From any thread.
  void unshare(void* memory);

  /// Ends all calls, enqueued ones and those to come, on every rank, with `reason`. Kernels that
  /// wait end within milliseconds; what they would have written is undefined. From any thread.
  void abort(std::string_view reason);

  /// The failure of the communicator, naming rank, peer and collective; null while there is none.
  /// From any thread. Where a kernel has just been stopped, whose stream ends as that of a call
  /// that was finished, it waits until the cause is known, 10 s at most. The string lives as long
  /// as this object.
  [[nodiscard]] const std::string* error() const noexcept;

  struct CHORUS_LOCAL Impl;

 private:
  friend class ScheduleByName;  // which is no friend of Communicator
  [[nodiscard]] CHORUS_LOCAL static Communicator::Impl& on_fixed_ranks(Communicator::Impl& host);
  [[nodiscard]] CHORUS_LOCAL static Communicator::Impl& inside(const Communicator& communicator);

  std::unique_ptr<Impl> impl_;
};

}  // namespace chorus
