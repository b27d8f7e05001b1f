// Enqueues operations of one process group on GPU memory; nothing of torch in here.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "chorus/communicator.hpp"
#include "drivers/task.hpp"
#include "runtime/gpu/communicator.hpp"
#include "runtime/gpu/stream.hpp"

namespace chorus_torch {

/// An operation on memory of the group's GPU: its calls and what is copied around them, on a stream
/// of the group's, after all that the caller's stream held when it was submitted.
struct GpuTask {
  std::shared_ptr<Task> task;  ///< name, calls, splits; pack, unpack and finished are not used
  std::vector<Copy> before, after;
  void* caller = nullptr;  ///< stream
  bool message = false;
  /// Told, once the task is in the stream, who uses its memory from there.
  std::function<void(void* stream)> uses;

  // Written by the driver, under its mutex.
  std::optional<chorus::DeviceMark> begin;
  std::shared_ptr<const chorus::DeviceMark> end;  ///< null until it is in the stream
  void* stream = nullptr;
};

/// Two communicators over GPU memory with a stream each, so that a receive that waits holds up no
/// collective. What one of them is given runs in its order; what begin_batch() and end_batch()
/// enclose starts at once. Any thread.
class GpuDriver {
 public:
  using MakeStream = std::function<void*()>;

  /// Collective over `world`, from which it splits off a communicator of its own. Throws InputError
  /// on all ranks if one of them has no GPU that can be used; `world` goes on then.
  GpuDriver(chorus::Communicator& world, int gpu, const MakeStream& make_stream, Amend amend);
  /// Collective: waits until what was enqueued has run, or failed.
  ~GpuDriver();
  GpuDriver(const GpuDriver&) = delete;
  GpuDriver& operator=(const GpuDriver&) = delete;

  [[nodiscard]] int gpu() const { return gpu_; }

  /// Enqueues it, or notes it where a batch is open. Throws chorus::Error if the group has failed
  /// or fails now: whatever goes wrong here fails the group on all ranks.
  void submit(std::shared_ptr<GpuTask> task);
  void begin_batch();
  /// Enqueues the batch: first its collectives, then its messages as one group. Without a batch it
  /// does nothing.
  void end_batch();
  /// The end of a task that was submitted; enqueues the batch that it may be in.
  std::shared_ptr<const chorus::DeviceMark> end_of(const GpuTask& task);

  void abort(const std::string& reason);
  /// The sentence of the group's failure; empty while there is none.
  [[nodiscard]] std::string failure();

 private:
  struct Lane {
    std::unique_ptr<chorus::DeviceCommunicator> communicator;
    void* stream = nullptr;
    std::vector<std::shared_ptr<GpuTask>> batch;
  };
  using Tasks = std::vector<std::shared_ptr<GpuTask>>;
  /// Tasks whose `uses` are over. Made before the mutex is taken, so that they go after it was let
  /// go: what they hold may be Python's objects, whose end waits for the interpreter's lock, which
  /// a thread that awaits the mutex may hold.
  struct Entered : Tasks {
    ~Entered();
  };
  void enqueue(Lane& lane, const Tasks& tasks, Entered& entered);
  void expand(const Task& task, void* stream, std::vector<chorus::DeviceCall>& calls) const;
  void flush(Entered& entered);

  const int gpu_;
  const Amend amend_;
  std::optional<chorus::Communicator> communicator_;
  std::mutex mutex_;  // of all below, but the communicators' failures
  bool batching_ = false;
  std::atomic<bool> told_ = false;  // both communicators have the failure
  std::array<Lane, 2> lanes_;       // collectives, messages
};

}  // namespace chorus_torch
