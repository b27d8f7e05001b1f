#include "cli/run/rank_output.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <utility>

namespace chorus {
namespace {

constexpr std::size_t kMaxLine = 64 * 1024;
constexpr std::size_t kEnough = 64 * 1024;

/// The pipe or terminal behind `fd`, opened again: O_NONBLOCK is of the opening, and that of `fd`
/// belongs to others as well. Nothing where that is not possible.
Fd opened_again(int fd) {
  struct stat what {};
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY || ::fstat(fd, &what) != 0) return Fd();
  if (!S_ISFIFO(what.st_mode) && ::isatty(fd) != 1) return Fd();
  return Fd(::open(fmt::format("/proc/self/fd/{}", fd).c_str(),
                   O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

}  // namespace

Outlet::Outlet(int fd) : fd_(fd), own_(opened_again(fd)) {
  struct stat what {};
  always_room_ = own_ || (::fstat(fd, &what) == 0 && S_ISREG(what.st_mode));
}

bool Outlet::is_full() const { return pending_.size() >= kEnough; }

void Outlet::put(std::string_view text) {
  if (lost_ != 0) return;
  pending_ += text;
  flush();
}

// As much as can be written now without blocking, as far as one can tell. Where poll() promises
// room that is PIPE_BUF bytes (poll(2), pipe(7)).
std::size_t Outlet::room() const {
  if (always_room_) return pending_.size();
  pollfd entry{fd(), POLLOUT, 0};
  return ::poll(&entry, 1, 0) > 0 ? std::min<std::size_t>(pending_.size(), PIPE_BUF) : 0;
}

void Outlet::flush() {
  std::size_t sent = 0;
  while (sent < pending_.size()) {
    const std::size_t most = std::min(room(), pending_.size() - sent);
    if (most == 0) break;
    const ssize_t now = ::write(fd(), pending_.data() + sent, most);
    if (now < 0 && errno == EINTR) continue;
    if (now < 0 && errno == EAGAIN) break;
    if (now < 0) {
      lost_ = errno;
      sent = pending_.size();
    } else {
      sent += static_cast<std::size_t>(now);
      written_ += static_cast<std::uint64_t>(now);
    }
  }
  pending_.erase(0, sent);
}

bool lead_to_one(int a, int b) {
  struct stat of_a {
  }, of_b{};
  return ::fstat(a, &of_a) == 0 && ::fstat(b, &of_b) == 0 && of_a.st_dev == of_b.st_dev &&
         of_a.st_ino == of_b.st_ino;
}

PrefixedStream::PrefixedStream(Fd from, Outlet& to, int rank)
    : from_(std::move(from)), to_(&to), prefix_(fmt::format("[{}] ", rank)) {}

bool PrefixedStream::forward() {
  std::array<char, 16 * 1024> buffer;
  while (!to_->is_full()) {
    const std::size_t most = std::min(buffer.size(), left_.value_or(buffer.size()));
    const ssize_t got = ::read(from_.get(), buffer.data(), most);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return true;
    if (got > 0) {
      if (left_) *left_ -= static_cast<std::size_t>(got);
      pending_.append(buffer.data(), static_cast<std::size_t>(got));
      put_lines();
      continue;
    }
    if (!pending_.empty()) {
      pending_ += '\n';
      put_lines();
    }
    from_.reset();
    return false;
  }
  return true;
}

void PrefixedStream::ends_here() {
  int there = 0;
  left_ = ::ioctl(from_.get(), FIONREAD, &there) == 0 ? static_cast<std::size_t>(there) : 0;
}

void PrefixedStream::put_lines() {
  std::size_t begin = 0;
  std::string text;
  for (std::size_t end; (end = pending_.find('\n', begin)) != std::string::npos;) {
    text += prefix_;
    text.append(pending_, begin, end + 1 - begin);
    begin = end + 1;
  }
  pending_.erase(0, begin);
  if (pending_.size() > kMaxLine) {
    text += prefix_ + pending_ + '\n';
    pending_.clear();
  }
  to_->put(text);
}

}  // namespace chorus
