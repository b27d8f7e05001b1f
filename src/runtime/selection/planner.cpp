#include "runtime/selection/planner.hpp"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <utility>

#include "base/text/log.hpp"
#include "chorus/error.hpp"

namespace chorus {
namespace {

using std::chrono::milliseconds;

/// How often a thread that waits for this one looks after its links.
constexpr milliseconds kLook{20};
/// A plan is worth less than the program's own work (nice).
constexpr int kNiceness = 10;

class Stopped : public std::exception {};

}  // namespace

Planner::Planner(std::shared_ptr<Control> control, GroupPlace place, Make make)
    : control_(std::move(control)), place_(std::move(place)) {
  control_->open_group(place_.key, place_.members, true);
  thread_ = std::jthread(
      [this, making = std::move(make)](const std::stop_token& stop) { run(stop, making); });
}

Planner::~Planner() {
  thread_.request_stop();
  control_->wake();
  thread_.join();
  control_->close_group(place_.key);
}

void Planner::run(const std::stop_token& stop, const Make& make) {
  // Of this thread alone, and those it starts.
  static_cast<void>(::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNiceness));
  std::string why_not;
  Planned made;
  try {
    made = make(stop);
  } catch (const std::exception& error) {
    why_not = error.what();
    if (why_not.empty()) why_not = "it failed";
  }
  try {
    const std::uint64_t from = agree(stop, why_not);
    {
      const std::lock_guard lock(mutex_);
      planned_ = std::move(made);
      from_ = from;
    }
    settle(State::agreed);
  } catch (const Stopped&) {
    settle(State::nothing);
  } catch (const std::exception& error) {
    if (!stop.stop_requested()) {
      log(LogLevel::info, fmt::format("[rank {}/{}]", place_.rank, place_.members.size()),
          fmt::format("no plan: {}", error.what()));
    }
    control_->abort(place_.key, error.what());  // a rank that comes later learns it, too
    settle(State::nothing);
  }
}

std::uint64_t Planner::agree(const std::stop_token& stop, const std::string& why_not) {
  const auto leave = [&] {
    control_->abort(place_.key, "it needs no plan any more");
    throw Stopped();
  };
  const auto exchange = [&](const char* what, std::span<const std::byte> mine,
                            const std::function<void()>& meanwhile) {
    return control_->exchange(fmt::format("{}/{}", place_.key, what), place_.members, mine,
                              Control::kNoDeadlineMs, place_.key, meanwhile);
  };
  if (stop.stop_requested()) leave();
  const auto ready = exchange("ready", std::as_bytes(std::span(why_not)), [&] {
    if (stop.stop_requested()) leave();
  });
  for (std::size_t r = 0; r < ready.size(); ++r) {
    if (ready[r].empty()) continue;
    throw BootstrapError(fmt::format(
        "rank {}: {}", r,
        std::string_view(reinterpret_cast<const char*>(ready[r].data()), ready[r].size())));
  }
  if (stop.stop_requested()) leave();
  std::uint64_t mine = 0;
  {
    const std::lock_guard lock(mutex_);
    const std::chrono::duration<double> lasted = std::chrono::steady_clock::now() - began_;
    const double ahead = static_cast<double>(reached_) / lasted.count() * kAnswerWithinS;
    mine = limit_ = reached_ + 2 + static_cast<std::uint64_t>(ahead);
  }
  // From here on it holds for the others, whether or not this rank needs it: they are as far.
  std::uint64_t from = 0;
  for (const auto& theirs : exchange("from", std::as_bytes(std::span(&mine, 1)), {})) {
    std::uint64_t call = 0;
    if (theirs.size() != sizeof call) throw BootstrapError("a rank agrees on no call");
    std::memcpy(&call, theirs.data(), sizeof call);
    from = std::max(from, call);
  }
  return from;
}

void Planner::settle(State state) {
  {
    const std::lock_guard lock(mutex_);
    state_ = state;
    limit_ = kNone;
  }
  changed_.notify_all();
}

bool Planner::due(std::uint64_t number, const std::function<void()>& meanwhile) {
  std::unique_lock lock(mutex_);
  reached_ = std::max(reached_, number);
  while (number >= limit_) {
    if (changed_.wait_for(lock, kLook, [&] { return number < limit_; })) break;
    lock.unlock();
    meanwhile();
    lock.lock();
  }
  return state_ == State::agreed && number >= from_;
}

Planner::State Planner::await(const std::function<void()>& meanwhile) {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kLook, [&] { return state_ != State::making; })) {
    lock.unlock();
    meanwhile();
    lock.lock();
  }
  return state_;
}

Planner::State Planner::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

std::uint64_t Planner::from_call() const {
  const std::lock_guard lock(mutex_);
  return from_;
}

Planned Planner::take() {
  const std::lock_guard lock(mutex_);
  return std::move(planned_);
}

}  // namespace chorus
