// The threads of a driver, one of which has the turn.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace chorus_torch {

/// For so long a driver's thread leaves what is new to whoever submitted it, who mostly waits for
/// it next: long enough to come back from Python's interpreter (10 to 60 µs), short against a
/// bucket of gradients (milliseconds).
constexpr auto kNap = std::chrono::microseconds(200);
/// Without anything new for this long the thread sleeps until it is woken.
constexpr auto kNapsAfterWork = std::chrono::milliseconds(20);

/// What the end of a task brings about may wait for another task, so the thread that is about to
/// run it must be able to let a further one drive meanwhile. Threads are made when a turn finds
/// none that stands by. All but join() is called with the driver's mutex held.
class DriverThreads {
 public:
  /// `drive` is run, with `mutex` held, by the thread whose turn it is. It returns true when
  /// another has the turn now, false when nobody needs it any more.
  DriverThreads(std::mutex& mutex, std::function<bool(std::unique_lock<std::mutex>&)> drive);
  ~DriverThreads();
  DriverThreads(const DriverThreads&) = delete;
  DriverThreads& operator=(const DriverThreads&) = delete;

  /// Another thread drives from now on; false where there can be no more (why_none() says it).
  [[nodiscard]] bool give_turn();
  [[nodiscard]] static std::string why_none();
  /// Different for each turn: who drives can tell whether it still does.
  [[nodiscard]] std::uint64_t turn() const { return turn_; }
  [[nodiscard]] bool begun() const { return turn_ > 0; }
  /// Returns when no thread is left: after `drive` returned false, or where none was ever made.
  void join();

 private:
  void stand_by();

  std::mutex& mutex_;
  std::function<bool(std::unique_lock<std::mutex>&)> drive_;
  std::condition_variable changed_;
  std::uint64_t turn_ = 0;
  bool free_ = false;  ///< nobody has taken this turn yet
  bool over_ = false;  ///< there will be no other
  int standing_by_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace chorus_torch
