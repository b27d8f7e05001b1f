// Runs sends and receives of one process group, all at the same time.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "driver_threads.hpp"
#include "task.hpp"

namespace chorus_torch {

/// A receive may wait for what its peer sends only after a send of ours that has yet to come, so
/// nobody may sit in one call: all are started as they come and polled. Each pair of messages
/// matches in the order of their calls. What the end of a message brings about may wait for the
/// future of another: then a further thread takes the driver's turn.
class MessageDriver {
 public:
  using Clock = std::chrono::steady_clock;

  MessageDriver(chorus::Communicator communicator, Amend amend);
  ~MessageDriver();

  void submit(std::shared_ptr<Task> task);
  void wait(const std::shared_ptr<Task>& task, std::chrono::milliseconds limit);
  void kick();
  void abort(const std::string& reason);
  /// No further message comes from this rank, which those that wait for one are told. Those under
  /// way go on. Never blocks.
  void end();
  /// The same, and leaves the communicator, collectively, from the calling thread, when the
  /// messages under way are over.
  void leave();

 private:
  struct Active {
    std::shared_ptr<Task> task;
    std::vector<chorus::Request> requests;
  };
  bool poll();
  bool move();
  void note_progress();
  std::vector<std::shared_ptr<Task>> take_quiet();
  static void tell(Task& task);
  void fail_all(const std::string& why);
  bool work(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;  // of everything below
  std::condition_variable work_;
  std::vector<Active> active_;
  std::vector<std::shared_ptr<Task>> ended_;
  std::uint64_t moved_messages_ = 0;
  bool leaving_ = false;
  bool alone_ = false;  // no further thread could be had: the group has failed
  Amend amend_;
  std::optional<chorus::Communicator> communicator_;
  std::atomic<Clock::time_point> moved_at_{Clock::time_point()};  // read without it
  DriverThreads threads_;  // last; the first is made with the first message
};

}  // namespace chorus_torch
