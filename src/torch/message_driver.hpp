// Runs sends and receives of one process group, all at the same time.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "task.hpp"

namespace chorus_torch {

/// A receive may wait for what its peer sends only after a send of ours that has yet to come, so
/// nobody may sit in one call: all are started as they come and polled. Each pair of messages
/// matches in the order of their calls.
class MessageDriver {
 public:
  MessageDriver(chorus::Communicator communicator, std::function<std::string(std::string)> amend);
  ~MessageDriver();

  void submit(std::shared_ptr<Task> task);
  void wait(const std::shared_ptr<Task>& task, std::chrono::milliseconds limit);
  void kick();
  void abort(const std::string& reason);
  /// Leaves the communicator, collectively, from the calling thread. Messages that no peer has
  /// taken by then are given up.
  void leave();

 private:
  struct Active {
    std::shared_ptr<Task> task;
    std::vector<chorus::Request> requests;
  };
  bool poll();
  bool move();
  void fail_all(const std::string& why);
  void work();

  std::mutex mutex_;  // of everything below
  std::condition_variable work_;
  std::vector<Active> active_;
  std::vector<std::shared_ptr<Task>> ended_;
  bool leaving_ = false;
  std::function<std::string(std::string)> amend_;
  std::optional<chorus::Communicator> communicator_;
  std::thread thread_;  // made with the first message
};

}  // namespace chorus_torch
