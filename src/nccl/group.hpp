// What a thread calls between ncclGroupStart and ncclGroupEnd, and how it runs.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "nccl/comm.hpp"

namespace chorus::nccl {

/// A collective or a message, its arguments judged.
struct Operation {
  ncclComm* comm = nullptr;
  std::shared_ptr<Body> body = {};
  Call call = {};
  void* stream = nullptr;
  bool on_gpu = false;
  bool checked = false;     ///< DeviceCall::checked
  bool falls_back = false;  ///< to the other library; only on the GPU
  /// The factor of a scaled sum, one element of the call's type; null: none. Read when it runs.
  const void* factor_at = nullptr;
  std::array<std::byte, 8> factor = {};
  bool scaled = false;
  std::string schedule = {};     ///< as ScheduleByName takes it
  void* launch_event = nullptr;  ///< DeviceCall::launch_event
};

/// Something that makes or ends a communicator, and may wait for other ranks.
struct Task {
  ncclComm* parent = nullptr;    ///< tasks of one parent run one after another; null: at once
  ncclComm* child = nullptr;     ///< what it makes; null: nothing
  ncclComm_t* result = nullptr;  ///< of the caller: set to null if it fails
  bool blocking = true;
  std::function<void()> run = {};
};

/// The group of one thread.
class Group {
 public:
  static Group& mine();

  void start() { ++depth_; }
  [[nodiscard]] bool open() const { return depth_ > 0; }
  ncclResult_t end();
  /// As end(), but nothing runs: seconds that the longest communicator's calls should take.
  double simulate();

  /// Runs at once outside a group.
  ncclResult_t add(Operation operation, Claim claim);
  ncclResult_t add(Task task, std::vector<Claim> claims);

  /// A call within the group failed: nothing of it will run.
  void spoil(const Outcome& outcome);

 private:
  struct Content {
    std::vector<Operation> operations;
    std::vector<Task> tasks;
    std::vector<Claim> claims;
    Outcome spoilt;
  };
  Content close();
  static ncclResult_t run(Content content);

  int depth_ = 0;
  Content content_;
};

/// Runs operations of any communicators of this thread to their ends. A failure of one fails all
/// communicators that take part, which nobody then waits for. Throws what failed first.
void execute(std::vector<Operation>& operations);

/// Sends to and receives from oneself, in their order, taken out of `operations`. Throws Fault for
/// those that have no partner of the same size and type.
void deliver_to_self(std::vector<Operation>& operations);

}  // namespace chorus::nccl
