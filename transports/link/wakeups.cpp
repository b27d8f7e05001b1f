#include "transports/link/wakeups.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/files/descriptors.hpp"
#include "chorus/error.hpp"

namespace chorus {
namespace {

[[noreturn]] void fail(const char* what, int error) {
  throw LinkError(
      fmt::format("shm: {}: {}", what,
                  lacks_descriptors(error) ? why_no_descriptor(error) : std::strerror(error)));
}

/// Of this thread, for the time that it sleeps beside another. Kept: threads that do so once do it
/// again.
int own_event() {
  thread_local const Fd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) fail("eventfd", errno);
  return event.get();
}

}  // namespace

Wakeups::Wakeups() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) fail("pipe2", errno);
  read_ = Fd(ends[0]);
  write_ = Fd(ends[1]);
  struct stat status {};
  if (::fstat(write_.get(), &status) != 0) fail("fstat", errno);
  inode_ = status.st_ino;
}

std::shared_ptr<const Fd> Wakeups::open_peer(int pid, int fd, std::uint64_t inode,
                                             std::string& reason) {
  const std::lock_guard lock(mutex_);
  std::weak_ptr<const Fd>& known = peers_[{pid, inode}];
  if (auto pipe = known.lock()) return pipe;
  // Read and write: with an end to read from of our own, a byte for a peer that has died is no
  // broken pipe, and raises no SIGPIPE.
  Fd opened = open_foreign(pid, fd, S_IFIFO, inode, O_RDWR | O_NONBLOCK, reason);
  std::erase_if(peers_, [](const auto& entry) { return entry.second.expired(); });
  if (!opened) return nullptr;
  auto pipe = std::make_shared<const Fd>(std::move(opened));
  peers_[{pid, inode}] = pipe;
  return pipe;
}

void Wakeups::Sleeper::begin() {
  if (state_ != State::awake) return;
  const std::lock_guard lock(of_->mutex_);
  const std::thread::id self = std::this_thread::get_id();
  if (of_->sleepers_on_pipe_ == 0 || of_->on_pipe_ == self) {
    of_->on_pipe_ = self;
    ++of_->sleepers_on_pipe_;
    state_ = State::on_pipe;
    return;
  }
  beside_ = own_event();
  of_->beside_.push_back(beside_);
  state_ = State::beside;
}

void Wakeups::Sleeper::end() {
  if (state_ == State::awake) return;
  const std::lock_guard lock(of_->mutex_);
  if (state_ == State::beside) {
    of_->beside_.erase(std::find(of_->beside_.begin(), of_->beside_.end(), beside_));
    std::uint64_t count = 0;
    [[maybe_unused]] const auto got = ::read(beside_, &count, sizeof count);
  } else if (--of_->sleepers_on_pipe_ == 0) {
    char bytes[256];
    while (::read(of_->read_.get(), bytes, sizeof bytes) == sizeof bytes) continue;
    // What was drained may have been for them, and one of them takes this place.
    const std::uint64_t one = 1;
    for (const int event : of_->beside_) {
      [[maybe_unused]] const auto written = ::write(event, &one, sizeof one);
    }
  }
  state_ = State::awake;
}

int Wakeups::Sleeper::fd() const { return state_ == State::beside ? beside_ : of_->read_.get(); }

}  // namespace chorus
