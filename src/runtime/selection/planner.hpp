// The schedules for a wiring are made beside the calls that need them, and begin with a call on
// which all ranks agree.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>

#include "chorus/topology.hpp"
#include "runtime/control/control.hpp"
#include "runtime/engine/connections.hpp"
#include "runtime/selection/selection.hpp"

namespace chorus {

class Survey;

/// What calls of a communicator are chosen by.
struct Planned {
  std::unique_ptr<Selector> selector;
  std::shared_ptr<Survey> survey = nullptr;  ///< that measured its topology, for this communicator
};

/// Makes it in a thread. Two exchanges among the ranks then agree on the first call that uses it:
/// in the first each says that it is ready; in the second, which call it has reached, and it begins
/// none that lies as far ahead as it makes in kAnswerWithinS before it knows the answer, the latest
/// of these. So the answer comes in time everywhere, and hardly a call waits for it. A rank that
/// ends the communicator, or is given another plan, before it has said which call it has reached
/// takes all others out of the agreement; later it holds, and means nothing to that rank.
class Planner {
 public:
  /// Throws what it likes: then nothing is made, on any rank.
  using Make = std::function<Planned(const std::stop_token&)>;

  /// Collective. `place.key` names no other planner.
  Planner(std::shared_ptr<Control> control, GroupPlace place, Make make);
  ~Planner();
  Planner(const Planner&) = delete;
  Planner& operator=(const Planner&) = delete;

  enum class State : std::uint8_t {
    making,
    agreed,   ///< taken from `from_call()` on
    nothing,  ///< came of it
  };
  /// Before call `number` of the communicator, which counts up: whether the plan is due. Waits
  /// where that is not known yet; `meanwhile` is called now and then.
  [[nodiscard]] bool due(std::uint64_t number, const std::function<void()>& meanwhile);
  /// Waits until it is agreed, or nothing came of it. The same.
  State await(const std::function<void()>& meanwhile);
  [[nodiscard]] State state() const;
  [[nodiscard]] std::uint64_t from_call() const;
  /// Once it is agreed.
  [[nodiscard]] Planned take();

 private:
  /// Longer than an exchange takes.
  static constexpr double kAnswerWithinS = 0.05;
  static constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();

  void run(const std::stop_token& stop, const Make& make);
  [[nodiscard]] std::uint64_t agree(const std::stop_token& stop, const std::string& why_not);
  void settle(State state);

  const std::shared_ptr<Control> control_;
  const GroupPlace place_;

  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::making;
  std::uint64_t reached_ = 0;    // the call that the communicator has reached
  std::uint64_t limit_ = kNone;  // no call from here on may begin yet
  std::uint64_t from_ = kNone;
  Planned planned_;

  std::jthread thread_;  // last: it uses the others
};

}  // namespace chorus
