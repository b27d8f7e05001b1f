#include "drivers/driver_threads.hpp"

#include <system_error>
#include <utility>

namespace chorus_torch {

DriverThreads::DriverThreads(std::mutex& mutex,
                             std::function<bool(std::unique_lock<std::mutex>&)> drive)
    : mutex_(mutex), drive_(std::move(drive)) {}

DriverThreads::~DriverThreads() { join(); }

bool DriverThreads::give_turn() {
  try {
    if (standing_by_ == 0) threads_.emplace_back([this] { stand_by(); });
  } catch (const std::system_error&) {
    return false;
  }
  free_ = true;
  ++turn_;
  changed_.notify_one();
  return true;
}

std::string DriverThreads::why_none() {
  return "no thread can be started for the process group: raise the limit of processes (ulimit -u; "
         "pids of a container) or of memory (ulimit -v)";
}

void DriverThreads::stand_by() {
  std::unique_lock lock(mutex_);
  do {
    ++standing_by_;
    changed_.wait(lock, [&] { return free_ || over_; });
    --standing_by_;
    if (over_) return;
    free_ = false;
  } while (drive_(lock));
  over_ = true;
  changed_.notify_all();
}

void DriverThreads::join() {
  std::unique_lock lock(mutex_);
  while (!threads_.empty()) {  // one of them may still make another
    std::thread one = std::move(threads_.back());
    threads_.pop_back();
    lock.unlock();
    one.join();
    lock.lock();
  }
}

}  // namespace chorus_torch
