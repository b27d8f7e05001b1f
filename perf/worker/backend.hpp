// What a communication library must offer to be measured.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "chorus/types.hpp"
#include "perf/benchmark.hpp"

namespace chorus::perf {

/// One collective as the measuring loop calls it, again and again on the same buffers.
///
/// `count` elements are one block: the whole buffer for all_reduce, reduce and broadcast, what one
/// rank contributes or takes for the others. Buffers are null where a rank has none (input of
/// scatter away from the root, output of reduce and gather away from the root).
/// In place means: input == output for all_reduce, reduce and all_to_all; input is output's own
/// block for all_gather and gather; output is input's own block for reduce_scatter and scatter.
/// broadcast always works on `output` alone.
struct Operation {
  Kind kind = Kind::barrier;
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  std::size_t count = 0;
  const void* input = nullptr;
  void* output = nullptr;
};

/// One point-to-point message.
struct Message {
  void* data = nullptr;
  std::size_t count = 0;
  DataType type = DataType::float32;
  int peer = 0;
};

/// One library, in one process of a job. Everything is called from one thread, in the same order
/// on every rank; failures are thrown as std::exception.
class Backend {
 public:
  virtual ~Backend() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int world_size() const = 0;
  /// "Open MPI 4.1.4": what the record of a measurement names.
  [[nodiscard]] virtual std::string version() const = 0;

  /// Empty if the operation is offered, else why not; the same on every rank.
  [[nodiscard]] virtual std::string refuse(const Operation& operation) const = 0;

  /// Collective. Everything that a careful user does once per buffer happens here, untimed; the
  /// function returned performs the operation and is what is timed.
  [[nodiscard]] virtual std::function<void()> prepare(const Operation& operation) = 0;

  /// The host has written the buffers of the last collective prepared that has any: brings them to
  /// where the library works, if that is elsewhere (a GPU's memory). Untimed.
  virtual void bring_buffers() {}
  /// And back, for the host to read.
  virtual void fetch_buffers() {}

  /// Starts all messages together and returns when the receives have arrived and the buffers of
  /// the sends are free again. Messages between two ranks match in their order.
  virtual void exchange(std::span<const Message> sends, std::span<const Message> receives) = 0;

  /// Memory for a buffer of a collective, zero or not, aligned to a page where it is that large;
  /// null: ordinary private memory will do.
  [[nodiscard]] virtual std::byte* allocate(std::size_t /*bytes*/) { return nullptr; }
  virtual void deallocate(std::byte* /*memory*/) {}

  /// Which of the library's algorithms the last prepare() chose, if that was a choice of ours.
  [[nodiscard]] virtual std::string note() const { return {}; }
};

/// Where the ranks of a library that has no launcher of its own leave what the others need to find
/// them. Lives in the driver.
class Meeting {
 public:
  virtual ~Meeting() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Waits until somebody has set it; whoever waits in vain is ended by the driver's deadline.
  [[nodiscard]] virtual std::string get(const std::string& key) = 0;
};

/// What the driver tells a worker on its command line.
struct WorkerArguments {
  std::string control;    ///< path of the driver's socket, or tcp:ADDRESS:PORT
  std::string line;       ///< path of the page of the StartLine; across hosts a Welcome tells it
  std::string directory;  ///< of this job alone, on this host
  std::string address;    ///< of this host, as the driver sees it; empty: it is the driver's
  Meeting* meeting = nullptr;
  /// Buffers come from the library's own allocator; otherwise they are ordinary memory.
  bool library_buffers = false;
  /// Buffers are on GPUs.
  bool on_gpu = false;
  std::string nccl = "libnccl.so.2";  ///< the library that the worker of NCCL opens
};

/// A number that the driver set for workers whose library does not know it: CHORUS_PERF_RANK,
/// CHORUS_PERF_WORLD_SIZE. Throws std::runtime_error if it did not.
[[nodiscard]] int environment_number(const char* name);

/// Defined once in every worker executable: joins the job that this process was started in.
[[nodiscard]] std::unique_ptr<Backend> make_backend(const WorkerArguments& arguments);

}  // namespace chorus::perf
