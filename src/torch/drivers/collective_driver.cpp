#include "drivers/collective_driver.hpp"

#include <algorithm>
#include <utility>

namespace chorus_torch {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

CollectiveDriver::CollectiveDriver(chorus::Communicator communicator, Amend amend)
    : amend_(std::move(amend)),
      communicator_(std::move(communicator)),
      threads_(mutex_, [this](auto& lock) { return work(lock); }) {
  const std::lock_guard lock(mutex_);
  if (threads_.give_turn()) return;
  communicator_->abort(DriverThreads::why_none());
  throw chorus::CollectiveError(amend_(DriverThreads::why_none()));
}

CollectiveDriver::~CollectiveDriver() {
  leave({});
  join();
}

void CollectiveDriver::submit(std::shared_ptr<Task> task) {
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    if (leaving_) throw chorus::InputError(task->name + ": the process group has been destroyed");
    task->id = ++submitted_;
    // A nap interrupts whoever computes on its core: 20 µs on some virtual machines. Tasks that are
    // awaited need none.
    if (!task->awaited) {
      ++not_awaited_;
      wake = !napping_;
    }
    queue_.push_back(std::move(task));
  }
  if (wake) work_.notify_one();
}

void CollectiveDriver::wait(const std::shared_ptr<Task>& task, std::chrono::milliseconds limit) {
  if (task->done.load(std::memory_order_acquire)) return;
  std::unique_lock lock(mutex_);
  if (limit.count() > 0) {
    // A thread that drives cannot leave before the end: let the other one do it.
    kicked_ = true;
    work_.notify_one();
    ++waiters_;
    const bool in_time = done_.wait_for(lock, limit, [&] { return task->done.load(); });
    --waiters_;
    if (in_time) return;
    lock.unlock();
    abort(task->name + " was not complete after the " + std::to_string(limit.count()) +
          " ms that wait() was given");
    lock.lock();
  }
  while (!task->done.load()) {
    if (limit.count() == 0 && !driving_ && !queue_.empty()) {
      drive_head(lock, false);
    } else {  // each end of driving and of a task is told to those who are counted here
      ++waiters_;
      done_.wait(lock);
      --waiters_;
    }
  }
}

void CollectiveDriver::kick() {
  std::unique_lock lock(mutex_);
  if (queue_.empty()) return;
  kicked_ = true;
  work_.notify_one();
  if (!telling_ || give_turn()) return;
  // Whoever has the turn may be waiting for these. They fail at once.
  while (!driving_ && !queue_.empty()) drive_head(lock, false);
}

// Another thread becomes the driver's. False, and the group has failed, where none can be had. With
// the lock.
bool CollectiveDriver::give_turn() {
  telling_ = !threads_.give_turn();
  if (telling_) communicator_->abort(DriverThreads::why_none());
  return !telling_;
}

void CollectiveDriver::abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);  // the communicator must not go meanwhile
  if (communicator_) communicator_->abort(reason);
}

void CollectiveDriver::set_timeout_ms(int timeout_ms) {
  auto task = std::make_shared<Task>();  // the communicator belongs to whoever drives
  task->name = "set_timeout";
  task->run = [timeout_ms](chorus::Communicator& communicator) {
    communicator.set_timeout_ms(timeout_ms);
  };
  submit(std::move(task));
}

std::optional<std::string> CollectiveDriver::failure() {
  const std::lock_guard lock(mutex_);  // the communicator must not go meanwhile
  return communicator_ ? communicator_->failure() : std::nullopt;
}

void CollectiveDriver::leave(std::function<void()> before) {
  const std::lock_guard lock(mutex_);
  if (leaving_) return;
  leaving_ = true;
  before_leaving_ = std::move(before);
  work_.notify_one();
}

// Runs the oldest task. `lock` is held on entry and on return, not between. `has_turn`: this is the
// driver's thread; true where it may have lost its turn meanwhile.
bool CollectiveDriver::drive_head(std::unique_lock<std::mutex>& lock, bool has_turn) {
  driving_ = true;
  const std::shared_ptr<Task> task = std::move(queue_.front());
  queue_.pop_front();
  lock.unlock();
  task->error = run(*task);
  lock.lock();
  driving_ = false;
  if (waiters_ > 0) done_.notify_all();
  const bool tells = task->wants_future() && has_turn;
  if (tells) {
    telling_ = true;
    if (kicked_ && !queue_.empty()) give_turn();
  }
  lock.unlock();
  // Without the lock and with the communicator free: what is told may wait for another task.
  task->tell();
  lock.lock();
  task->done.store(true, std::memory_order_release);
  if (waiters_ > 0) done_.notify_all();
  return tells;
}

std::string CollectiveDriver::run(Task& task) {
  try {
    if (task.pack) task.pack();
    if (task.run) {
      task.run(*communicator_);
    } else if (task.calls.size() == 1) {
      communicator_->run(task.calls.front());  // which knows calls that it made before
    } else {
      std::vector<chorus::Request> requests;
      requests.reserve(task.calls.size());
      for (const chorus::Call& call : task.calls) requests.push_back(communicator_->start(call));
      for (chorus::Request& request : requests) request.wait();
    }
    if (task.unpack) task.unpack();
    return {};
  } catch (...) {
    return failure_of(task, *communicator_, amend_);
  }
}

bool CollectiveDriver::all_awaited() const {
  return std::ranges::all_of(queue_, [](const auto& task) { return task->awaited; });
}

// As the driver's thread; true when it gave its turn to another. `lock` is held on entry and on
// return.
bool CollectiveDriver::work(std::unique_lock<std::mutex>& lock) {
  const std::uint64_t mine = threads_.turn();
  std::uint64_t left_alone = 0;  // the oldest task at the last nap
  std::uint64_t seen = 0;
  auto last_work = Clock::now();
  while (!leaving_ || driving_ || !queue_.empty()) {
    if (driving_ && (kicked_ || leaving_)) {
      ++waiters_;
      done_.wait(lock);
      --waiters_;
      continue;
    }
    // To be told of the end of each operation that somebody waits for would cost that thread a
    // wake-up, and both the lock that the other one wants next.
    if (driving_) {
      work_.wait_for(lock, kNap);
      continue;
    }
    if (queue_.empty()) {
      kicked_ = false;
    } else if (kicked_ || leaving_ || (queue_.front()->id == left_alone && !all_awaited())) {
      if (drive_head(lock, true)) {
        if (threads_.turn() != mine) return true;
        telling_ = false;
      }
      continue;
    }
    left_alone = queue_.empty() ? 0 : queue_.front()->id;
    const auto now = Clock::now();
    if (std::exchange(seen, not_awaited_) != not_awaited_) last_work = now;
    if (now - last_work < kNapsAfterWork) {
      work_.wait_for(lock, kNap);
      continue;
    }
    napping_ = false;
    work_.wait(lock, [&] { return leaving_ || kicked_ || not_awaited_ != seen; });
    napping_ = true;
  }
  std::optional<chorus::Communicator> last = std::move(communicator_);
  communicator_.reset();
  const auto before = std::move(before_leaving_);
  last->announce_end();
  lock.unlock();
  if (before) before();
  last.reset();  // collective
  left_ = true;
  lock.lock();
  return false;
}

}  // namespace chorus_torch
