#include "driver_threads.hpp"

#include <utility>

namespace chorus_torch {

DriverThreads::DriverThreads(std::mutex& mutex,
                             std::function<bool(std::unique_lock<std::mutex>&)> drive)
    : mutex_(mutex), drive_(std::move(drive)) {}

DriverThreads::~DriverThreads() { join(); }

void DriverThreads::give_turn() {
  if (standing_by_ == 0) threads_.emplace_back([this] { stand_by(); });
  free_ = true;
  ++turn_;
  changed_.notify_one();
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
