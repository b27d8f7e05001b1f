// One operation of torch.distributed on its way through a communicator; nothing of torch in here.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "chorus/communicator.hpp"

namespace chorus_torch {

/// Bytes that move within this rank's memory.
struct Copy {
  void* to;
  const void* from;
  std::size_t bytes;
};

/// Calls that belong together, and what has to happen around them. Whoever drives the task (the
/// thread that waits for it, or the group's own) runs `pack`, the calls, `unpack`, then `finished`.
struct Task {
  /// Counts and offsets of one all_to_all_v, which its Call refers to.
  struct Splits {
    std::vector<std::size_t> send_counts, send_offsets, recv_counts, recv_offsets;
  };

  std::string name;  ///< "all_reduce", for messages
  std::vector<chorus::Call> calls;
  /// In place of calls, for what a collective call is no word for; collectives only.
  std::function<void(chorus::Communicator&)> run;
  std::list<Splits> splits;      ///< where they are they stay; an empty list allocates nothing
  std::int64_t tag = 0;          ///< of a message
  bool from_anyone = false;      ///< a receive from whichever rank sends first
  chorus::Rank source = -1;      ///< written when a receive is done
  std::function<void()> pack;    ///< copies lists of tensors into one buffer; may be empty
  std::function<void()> unpack;  ///< and back; may throw anything
  /// Told once, without any lock held; `error` is empty when all went well.
  std::function<void(const std::string& error)> finished;
  std::chrono::milliseconds timeout{0};
  bool awaited = false;  ///< whoever submits it waits for it next; collectives only
  std::chrono::steady_clock::time_point begun = std::chrono::steady_clock::now();

  /// Whoever calls `finished` asks first whether a future waits for it: what that brings about may
  /// take its time. From then on no future may be made until the task is done.
  bool wants_future() {
    auto now = Future::none;
    return !future.compare_exchange_strong(now, Future::never);
  }
  /// Before a future of the task is made.
  void want_future() {
    auto now = Future::none;
    if (future.compare_exchange_strong(now, Future::wanted)) return;
    while (now == Future::never && !done.load()) std::this_thread::yield();
  }
  /// Calls `finished` and drops all that the task's functions hold; without any lock held. What it
  /// throws nobody can be told: it fails the task, if nothing else did.
  void tell() noexcept;
  enum class Future { none, wanted, never };
  std::atomic<Future> future = Future::none;
  std::uint64_t id = 0;            ///< counts from 1 in its driver
  std::string error;               ///< valid when done
  std::atomic<bool> done = false;  ///< set after `finished` has returned
};

/// Adds what is known to the sentence of a failure.
using Amend = std::function<std::string(std::string)>;

/// In a catch block: the sentence of what ended `task`. What is no failure of Chorus' own fails
/// `communicator`, whose other ranks must not wait in vain.
std::string failure_of(const Task& task, chorus::Communicator& communicator, const Amend& amend);

}  // namespace chorus_torch
