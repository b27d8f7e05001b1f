#include "runtime/gpu/watch.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <chrono>
#include <utility>

#include "device/host_words.hpp"
#include "runtime/engine/flight_recorder.hpp"

namespace chorus {
namespace {

constexpr int kLookEveryMs = 50;
constexpr int kLooksPerReport = 20;
constexpr int kAnswerMs = 500;
/// By when the coordinator has told all why a kernel was stopped, or is gone, which is told too.
constexpr int kToldWithinMs = 10'000;

using device::seen;

}  // namespace

DeviceWatch::DeviceWatch(Control& control, const GroupPlace& place, std::string group,
                         device::HostStatus& status, int timeout_ms, std::function<void()> listen)
    : control_(control),
      place_(place),
      group_(std::move(group)),
      status_(status),
      timeout_ms_(timeout_ms),
      listen_(std::move(listen)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      thread_([this] { run(); }) {}

DeviceWatch::~DeviceWatch() {
  stop_ = true;
  ::eventfd_write(wake_.get(), 1);
  thread_.join();
}

void DeviceWatch::note(std::uint64_t sequence, const Call& call) {
  const std::lock_guard lock(mutex_);
  const bool message = call.kind > Call::Kind::barrier;
  notes_[sequence % kNotes] = {sequence, call, message ? 0 : ++collectives_};
}

void DeviceWatch::abort(std::string_view reason) {
  stop_kernels();
  control_.abort(group_, reason);
  ::eventfd_write(wake_.get(), 1);
}

void DeviceWatch::link_failed(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    link_failure_ = reason;
  }
  ::eventfd_write(wake_.get(), 1);
}

void DeviceWatch::stop_kernels() { device::show(status_.abort, 1); }

void DeviceWatch::run() {
  while (!stop_) {
    pollfd fds[] = {{control_.fd(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
    // Others read from the control connection too: what it said may be known though it is quiet.
    ::poll(fds, 2, kLookEveryMs);
    eventfd_t count = 0;
    static_cast<void>(::eventfd_read(wake_.get(), &count));
    if (error_.load() == nullptr) look();
  }
}

void DeviceWatch::look() {
  control_.poll();
  listen_();
  if (const auto verdict = control_.verdict(group_)) {
    fail(*verdict);
    return;
  }
  std::string link_failure;
  {
    const std::lock_guard lock(mutex_);
    link_failure = link_failure_;
  }
  const auto failure = static_cast<device::Failure>(seen(status_.failure));
  if (!link_failure.empty()) {
    give_up(link_failure);
  } else if (failure != device::Failure::none) {
    look_at_failure(failure);
  } else {
    look_at_progress();
  }
}

std::string DeviceWatch::signature_of(std::uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  const Note& note = notes_[sequence % kNotes];
  return note.sequence == sequence ? signature(note.call) : "an earlier call";
}

// What the coordinator compares between ranks: the same number is the same call on all of them.
// Messages have none, for ranks may send and receive as many as they like between two collectives.
std::uint64_t DeviceWatch::collective_of(std::uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  const Note& note = notes_[sequence % kNotes];
  return note.sequence == sequence ? note.collective : 0;
}

// The peer that a kernel waited for may itself wait for the one that did not come.
void DeviceWatch::ask_who_is_missing(std::uint64_t sequence, Rank known) {
  const std::uint64_t collective = collective_of(sequence);
  if (collective == 0) return;
  control_.report_waiting(group_, collective, signature_of(sequence), known);
  for (int waited_ms = 0; waited_ms < kAnswerMs; waited_ms += 10) {
    control_.poll();
    if (!control_.who_is_missing(group_, collective).empty()) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

// The coordinator knows more than a kernel: whose process ended, who called something else.
void DeviceWatch::look_at_failure(device::Failure failure) {
  const std::uint64_t sequence = status_.sequence;
  const std::string call = fmt::format("call {} {}", sequence, signature_of(sequence));
  const auto known =
      static_cast<Rank>(status_.peer < place_.members.size() ? static_cast<int>(status_.peer) : -1);
  const std::string peer = known >= 0 ? fmt::format("rank {}", known) : "another lane";
  std::string reason;
  switch (failure) {
    case device::Failure::timeout:
      ask_who_is_missing(sequence, known);
      reason = control_.with_missing(
          fmt::format("{}: lane {}, step {}, tile {}: nothing from {} for {} ms on the GPU "
                      "(CHORUS_TIMEOUT_MS)",
                      call, status_.lane, status_.instruction, status_.tile, peer, timeout_ms_),
          group_, collective_of(sequence));
      control_.abort(group_, fmt::format("rank {}: {}", place_.rank, reason));
      break;
    default:
      reason = failure == device::Failure::mismatch
                   ? fmt::format("{}: the next message of {} belongs to another call", call, peer)
                   : fmt::format("{}: the kernel of {} failed", call, peer);
      // Whose kernel was stopped by another's reports, too: calls that differ show side by side.
      if (const std::uint64_t collective = collective_of(sequence); collective != 0) {
        control_.report_waiting(group_, collective, signature_of(sequence), known);
      }
      give_up(reason);
      return;
  }
  fail(control_.await_verdict(group_).value_or(reason));
}

// The coordinator may know the cause, or that all is over; else this is it.
void DeviceWatch::give_up(const std::string& reason) {
  if (!control_.await_verdict(group_)) {
    control_.abort(group_, fmt::format("rank {}: {}", place_.rank, reason));
  }
  fail(control_.await_verdict(group_).value_or(reason));
}

// A call that has been under way for long is reported, so that the coordinator can compare.
void DeviceWatch::look_at_progress() {
  const std::uint64_t begun = seen(status_.begun);
  if (begun == seen(status_.ended) || begun != begun_) {
    begun_ = begun;
    looks_ = 0;
    return;
  }
  if (++looks_ % kLooksPerReport != 0) return;
  if (const std::uint64_t collective = collective_of(begun); collective != 0) {
    control_.report_waiting(group_, collective, signature_of(begun), -1);
  }
}

void DeviceWatch::fail(const std::string& reason) {
  sentence_ = fmt::format("rank {}: {}", place_.rank, reason);
  error_.store(&sentence_);
  stop_kernels();
}

const std::string* DeviceWatch::error() const noexcept {
  const auto has_failed = [&] {
    return seen(status_.abort) != 0 ||
           static_cast<device::Failure>(seen(status_.failure)) != device::Failure::none;
  };
  for (int waited_ms = 0; error_.load() == nullptr && has_failed(); ++waited_ms) {
    if (waited_ms == kToldWithinMs) return &unknown_;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return error_.load();
}

}  // namespace chorus
