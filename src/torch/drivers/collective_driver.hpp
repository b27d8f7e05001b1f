// Runs collectives of one process group in their order, on whichever thread has the time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "drivers/driver_threads.hpp"
#include "drivers/task.hpp"

namespace chorus_torch {

/// Chorus moves only while somebody waits, one thread at a time. A training script waits at once
/// (then its own thread drives: no hand-over, no wake-up) or computes meanwhile (then the driver's
/// thread must). Where a task does not say that it is awaited, which of the two it is shows only
/// later, so the driver's thread lets a new task be for a nap's length unless it is told that
/// nobody will wait (`kick`). What the end of a task brings about may wait for the future of
/// another: then a further thread takes the driver's turn.
class CollectiveDriver {
 public:
  /// Takes over `communicator`. `amend` adds what is known to the sentence of a failure.
  CollectiveDriver(chorus::Communicator communicator, Amend amend);
  ~CollectiveDriver();

  /// Any thread; never blocks on the network. Throws chorus::InputError after leave().
  void submit(std::shared_ptr<Task> task);
  /// Returns when the task is done, driving it and those before it from this thread if that is
  /// free. A time limit (0: none) fails the whole group when it passes.
  void wait(const std::shared_ptr<Task>& task, std::chrono::milliseconds limit);
  /// The driver's thread begins at once with what is queued.
  void kick();
  /// Fails what runs and all that comes. Any thread; never blocks.
  void abort(const std::string& reason);
  /// Of what is submitted from now on: Communicator::set_timeout_ms. Throws as submit().
  void set_timeout_ms(int timeout_ms);
  /// Why the communicator has failed; nothing after leave() is through. Any thread; never blocks.
  [[nodiscard]] std::optional<std::string> failure();
  /// Finishes what is queued and leaves the communicator, collectively, on the driver's thread;
  /// `before` is called there first. Returns at once; join() waits for it.
  void leave(std::function<void()> before);
  void join() { threads_.join(); }
  [[nodiscard]] bool has_left() const { return left_; }

 private:
  bool work(std::unique_lock<std::mutex>& lock);
  bool give_turn();
  bool drive_head(std::unique_lock<std::mutex>& lock, bool has_turn);
  std::string run(Task& task);
  [[nodiscard]] bool all_awaited() const;

  std::mutex mutex_;  // of everything below but communicator_, which belongs to who drives
  std::condition_variable done_, work_;
  std::deque<std::shared_ptr<Task>> queue_;
  bool driving_ = false;
  bool kicked_ = false;
  bool napping_ = false;  // the thread looks at the queue by itself, soon
  bool leaving_ = false;
  bool telling_ = false;  // who has the turn is busy with what a task's end brings about
  int waiters_ = 0;
  std::uint64_t submitted_ = 0;
  std::uint64_t not_awaited_ = 0;  // of those
  std::function<void()> before_leaving_;
  Amend amend_;
  std::optional<chorus::Communicator> communicator_;
  std::atomic<bool> left_ = false;
  DriverThreads threads_;  // last: they use all of the above
};

}  // namespace chorus_torch
