// What a Coordinator holds: private to coordinator.cpp.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "runtime/control/coordinator/end.hpp"

namespace chorus {

/// A thread's end (WireEnd) with its sockets, which outlives whoever waits for it by a moment.
class WireThread {
 public:
  /// `name`: of the thread.
  WireThread(const char* name, SocketWires& wires);
  ~WireThread();
  WireThread(const WireThread&) = delete;
  WireThread& operator=(const WireThread&) = delete;

 private:
  struct End {
    std::mutex mutex;
    std::condition_variable changed;
    bool reached = false;
  };
  SocketWires& wires_;
  std::atomic<bool> stop_{false};
  std::shared_ptr<End> end_ = std::make_shared<End>();
};

}  // namespace chorus
