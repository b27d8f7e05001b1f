#include "transports/tcp/readiness.hpp"

#include <sys/epoll.h>

#include <array>

namespace chorus {
namespace {

/// Fewer sockets than this are read one by one: one call more would take longer.
constexpr std::size_t kWorthACall = 3;
constexpr int kEventsPerCall = 64;

}  // namespace

TcpReadiness::TcpReadiness() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {}

void TcpReadiness::watch(int fd) {
  const auto at = static_cast<std::size_t>(fd);
  if (at >= states_.size()) states_.resize(at + 1, kReadable | kWritable);
  set(fd, kReadable | kWritable);
  // Each change is told once. Closing the socket ends it.
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.fd = fd;
  if (!epoll_ || ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    states_[at] |= kAlwaysReadable | kAlwaysWritable;
  }
}

void TcpReadiness::look(std::uint64_t& round, std::size_t sockets) {
  if (round == round_) {
    direct_ = in_round_ < kWorthACall;
    in_round_ = 0;
    ++round_;
    if (!direct_ || full_ > 0) refresh();
  }
  round = round_;
  in_round_ += sockets;
}

void TcpReadiness::look_for_room(std::uint64_t& round) {
  if (round == room_round_) {
    ++room_round_;
    refresh();
  }
  round = room_round_;
}

void TcpReadiness::refresh() {
  std::array<epoll_event, kEventsPerCall> events;
  int count = kEventsPerCall;
  while (count == kEventsPerCall) {
    count = ::epoll_wait(epoll_.get(), events.data(), kEventsPerCall, 0);
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<std::size_t>(i)];
      std::uint8_t now = state(event.data.fd);
      if ((event.events & EPOLLIN) != 0) now |= kReadable;
      if ((event.events & EPOLLOUT) != 0) now |= kWritable;
      if ((event.events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
        now |= kReadable | kWritable | kAlwaysReadable | kAlwaysWritable;
      }
      set(event.data.fd, now);
    }
  }
}

void TcpReadiness::is_empty(int fd) {
  if ((state(fd) & kAlwaysReadable) == 0) set(fd, state(fd) & ~kReadable);
}

void TcpReadiness::is_full(int fd) {
  if ((state(fd) & kAlwaysWritable) == 0) set(fd, state(fd) & ~kWritable);
}

void TcpReadiness::set(int fd, std::uint8_t state) {
  std::uint8_t& known = states_[static_cast<std::size_t>(fd)];
  if ((known & kWritable) == 0) --full_;
  if ((state & kWritable) == 0) ++full_;
  known = state;
}

}  // namespace chorus
