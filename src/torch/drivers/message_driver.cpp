#include "drivers/message_driver.hpp"

#include <sched.h>

#include <algorithm>
#include <iterator>
#include <thread>
#include <utility>

namespace chorus_torch {
namespace {

using Clock = MessageDriver::Clock;

// Who waits polls without sleeping for this long: waking another process takes 40 µs.
constexpr auto kSpin = std::chrono::microseconds(200);
constexpr auto kShortSleep = std::chrono::microseconds(50);
constexpr auto kLongSleep = std::chrono::microseconds(500);

// One round of waiting in which nothing has happened since `begin`.
void pause(Clock::time_point begin) {
  const auto waited = Clock::now() - begin;
  if (waited < kSpin) {
    ::sched_yield();
  } else {
    std::this_thread::sleep_for(waited < 40 * kSpin ? kShortSleep : kLongSleep);
  }
}

}  // namespace

MessageDriver::MessageDriver(chorus::Communicator communicator, Amend amend)
    : amend_(std::move(amend)),
      communicator_(std::move(communicator)),
      threads_(mutex_, [this](auto& lock) { return work(lock); }) {
  listening_.resize(static_cast<std::size_t>(communicator_->world_size()));
}

MessageDriver::~MessageDriver() { leave(); }

bool MessageDriver::idle() const {
  return sending_.empty() && posted_.empty() &&
         std::ranges::all_of(arriving_,
                             [](const auto& message) { return message->whole && !message->task; });
}

void MessageDriver::submit(std::shared_ptr<Task> task) {
  {
    const std::lock_guard lock(mutex_);
    if (leaving_) throw chorus::InputError(task->name + ": the process group has been destroyed");
    if (!threads_.begun() && !threads_.give_turn()) {
      communicator_->abort(DriverThreads::why_none());
      throw chorus::CollectiveError(amend_(DriverThreads::why_none()));
    }
    const bool slept = idle();
    submitted_at_ = task->begun;
    std::string error;
    try {
      if (task->pack) task->pack();
      if (task->calls.front().kind == chorus::Call::Kind::send) {
        begin_send(task);
      } else {
        begin_receive(task);
      }
    } catch (...) {
      error = failure_of(*task, *communicator_, amend_);
    }
    if (error.empty()) {
      move();
    } else {
      fail_all(error);
      if (std::ranges::find(ended_, task) == ended_.end()) {
        task->error = error;
        ended_.push_back(task);
      }
    }
    if (slept && !napping_) work_.notify_one();
  }
  poll();
}

// Moves every message on; true when any ended. With the lock.
bool MessageDriver::move() {
  const auto before = ended_.size();
  note_progress();
  try {
    if (!aborted_.empty()) throw chorus::CollectiveError(aborted_);
    move_sending();
    listen();
    move_listening();
    move_arriving();
    check_timeouts();
  } catch (...) {
    static const Task kNone;
    fail_all(failure_of(blamed_ ? *blamed_ : kNone, *communicator_, amend_));
  }
  blamed_.reset();
  return ended_.size() != before;
}

void MessageDriver::set_timeout_ms(int timeout_ms) {
  const std::lock_guard lock(mutex_);
  if (communicator_) communicator_->set_timeout_ms(timeout_ms);
}

void MessageDriver::check_timeouts() {
  const auto now = Clock::now();
  const auto check = [&](const std::shared_ptr<Task>& task) {
    if (!task || task->timeout.count() == 0 || now - task->begun <= task->timeout) return;
    throw chorus::CollectiveError(task->name + ": not complete after " +
                                  std::to_string(task->timeout.count()) +
                                  " ms, the timeout of the process group");
  };
  for (const Sending& sending : sending_) check(sending.task);
  for (const auto& task : posted_) check(task);
  for (const auto& message : arriving_) check(message->task);
}

// Parts of large messages take many rounds: who sleeps between them keeps the peer waiting.
void MessageDriver::note_progress() {
  const chorus::Traffic traffic = communicator_->traffic();
  const std::uint64_t moved = traffic.messages + traffic.messages_taken;
  if (moved == moved_messages_) return;
  moved_messages_ = moved;
  moved_at_.store(Clock::now(), std::memory_order_relaxed);
}

void MessageDriver::fail_all(const std::string& why) {
  communicator_->abort(why);
  const auto fail = [&](std::shared_ptr<Task>& task) {
    if (!task) return;
    task->error = why;
    ended_.push_back(std::move(task));
  };
  for (Sending& sending : sending_) fail(sending.task);
  for (auto& task : posted_) fail(task);
  for (auto& message : arriving_) fail(message->task);
  // Requests of a failed communicator end at once.
  sending_.clear();
  posted_.clear();
  for (auto& peer : listening_) peer.reset();
  arriving_.clear();
}

// Receives for which nobody in particular would have to be blamed, were they never to end. With the
// lock.
void MessageDriver::give_up_in_vain() {
  const chorus::Rank me = communicator_->rank();
  std::erase_if(posted_, [&](const std::shared_ptr<Task>& task) {
    if (!task->from_anyone && task->calls.front().peer != me) return false;
    task->error = task->name + ": the process group was destroyed before a message came";
    ended_.push_back(task);
    return true;
  });
}

// Takes the ended for whose future nobody waits; all, where the driver's thread is the only one and
// may itself wait for one of them. With the lock.
std::vector<std::shared_ptr<Task>> MessageDriver::take_quiet() {
  const auto first = std::stable_partition(ended_.begin(), ended_.end(), [&](const auto& task) {
    return task->wants_future() && !alone_;
  });
  std::vector<std::shared_ptr<Task>> quiet(std::make_move_iterator(first),
                                           std::make_move_iterator(ended_.end()));
  ended_.erase(first, ended_.end());
  return quiet;
}

// One round for everybody; tells those whose messages ended, without the lock. Futures are left to
// the driver's thread: what they bring about may wait for what the caller has yet to start.
bool MessageDriver::poll() {
  std::vector<std::shared_ptr<Task>> quiet;
  {
    const std::lock_guard lock(mutex_);
    if (!idle()) move();
    if (!ended_.empty()) quiet = take_quiet();
    if (!ended_.empty()) work_.notify_one();
  }
  for (const auto& task : quiet) tell(*task);
  return !quiet.empty();
}

// Without the lock.
void MessageDriver::tell(Task& task) {
  task.tell();
  task.done.store(true, std::memory_order_release);
}

void MessageDriver::wait(const std::shared_ptr<Task>& task, std::chrono::milliseconds limit) {
  if (task->done.load(std::memory_order_acquire)) return;
  const auto begin = Clock::now();
  bool aborted = false;
  {
    const std::lock_guard lock(mutex_);
    ++pollers_;
  }
  while (!task->done.load(std::memory_order_acquire)) {
    if (poll()) continue;
    if (limit.count() > 0 && !aborted && Clock::now() - begin > limit) {
      aborted = true;
      abort(task->name + ": not complete after the " + std::to_string(limit.count()) +
            " ms that wait() was given");
    }
    pause(std::max(begin, moved_at_.load(std::memory_order_relaxed)));
  }
  const std::lock_guard lock(mutex_);
  if (--pollers_ == 0 && !idle() && !napping_) work_.notify_one();
}

void MessageDriver::kick() {}  // all move as soon as they come

void MessageDriver::abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (!communicator_) return;
  communicator_->abort(reason);
  aborted_ = communicator_->failure().value_or(reason);
}

void MessageDriver::end() {
  const std::lock_guard lock(mutex_);
  if (leaving_) return;
  leaving_ = true;
  give_up_in_vain();
  communicator_->announce_end();
  work_.notify_one();
}

void MessageDriver::leave() {
  end();
  threads_.join();
  std::optional<chorus::Communicator> last;
  {
    const std::lock_guard lock(mutex_);
    last = std::move(communicator_);
    communicator_.reset();
  }
}

// While nothing is under way, or somebody waits and so moves all that is. To be told of each
// message would cost those who submit and wait for one after the other a wake-up each. Who has
// waited for a nap's length may wait for long: nothing is to be seen to until then.
void MessageDriver::rest(std::unique_lock<std::mutex>& lock) {
  const bool another = std::exchange(seen_at_, submitted_at_) != submitted_at_;
  if (pollers_ > 0 ? another : Clock::now() - submitted_at_ < kNapsAfterWork) {
    napping_ = true;
    work_.wait_for(lock, kNap);
    napping_ = false;
  } else {
    work_.wait(lock, [&] { return leaving_ || !ended_.empty() || (!idle() && pollers_ == 0); });
  }
}

// As the driver's thread; true when it gave its turn to another. `lock` is held on entry and on
// return.
bool MessageDriver::work(std::unique_lock<std::mutex>& lock) {
  auto begin = Clock::now();
  while (!leaving_ || !idle() || !ended_.empty()) {
    if (ended_.empty() && !leaving_ && (idle() || pollers_ > 0)) {
      rest(lock);
      begin = Clock::now();
      continue;
    }
    if (!idle()) move();
    const auto quiet = take_quiet();
    std::shared_ptr<Task> loud;  // one at a time: it may wait for the next
    if (!ended_.empty()) {
      loud = std::move(ended_.front());
      ended_.erase(ended_.begin());
      alone_ = !threads_.give_turn();
      if (alone_) fail_all(DriverThreads::why_none());
    }
    lock.unlock();
    for (const auto& task : quiet) tell(*task);
    if (loud) tell(*loud);
    // Whoever waits spins; this thread only sees to it that nothing is forgotten.
    if (!quiet.empty()) begin = Clock::now();
    if (!loud) {
      std::this_thread::sleep_for(Clock::now() - begin < 40 * kSpin ? kShortSleep : kLongSleep);
    }
    lock.lock();
    if (loud && !alone_) return true;
  }
  return false;
}

}  // namespace chorus_torch
