// The connection to the coordinator: several threads read it and sleep on it, and it may be another
// one from one moment to the next.
#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/text/log.hpp"
#include "chorus/error.hpp"
#include "runtime/control/coordinator/judge.hpp"
#include "runtime/control/impl.hpp"

namespace chorus {
namespace {

using std::chrono::milliseconds;

/// Another thread may have read what this one sleeps for; it looks again this often.
constexpr milliseconds kSlice{50};

}  // namespace

void Control::Impl::send(const wire::Frame& frame) {
  if (disconnected || following == Following::seeking) return;
  outbox.add(frame);
  // A broken connection is noticed by reading: what the coordinator said last comes first.
  if (!outbox.flush(socket.get())) outbox.clear();
}

void Control::Impl::pump() {
  if (disconnected || following == Following::seeking) return;
  if (!outbox.empty() && !outbox.flush(socket.get())) outbox.clear();
  thread_local std::array<std::byte, 64 * 1024> buffer;
  for (;;) {
    // Before reading: the handshake may have read more than its own.
    try {
      bool heard = false;
      while (const auto item = inbox.next()) {
        hear(item->type, wire::Reader(item->body));
        heard = true;
      }
      if (heard) wake_sleepers();
    } catch (const wire::Malformed& malformed) {
      return on_disconnect(fmt::format("it sent what no coordinator sends: {}", malformed.what()));
    }
    const ssize_t got = ::recv(socket.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got <= 0) {
      const bool silent = got < 0 && (errno == ETIMEDOUT || errno == EHOSTUNREACH);
      return on_disconnect(silent ? std::string(kSilent) : "its connection closed");
    }
    inbox.add(std::span(buffer).first(static_cast<std::size_t>(got)));
  }
}

void Control::Impl::sleep(std::unique_lock<std::mutex>& lock, Time deadline) {
  const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
  const bool sends = !outbox.empty() && socket;
  // Without one (no descriptor is left) it looks again after a slice.
  if (!doorbell) doorbell = net::Socket(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE));
  std::array<pollfd, 3> entries{pollfd{polled.get(), POLLIN, 0},
                                pollfd{sends ? socket.get() : -1, POLLOUT, 0},
                                pollfd{doorbell.get(), POLLIN, 0}};
  ++sleepers;
  lock.unlock();
  ::poll(entries.data(), entries.size(),
         static_cast<int>(std::clamp(left, milliseconds(1), kSlice).count()));
  be_awake();
  lock.lock();
  --sleepers;
  std::uint64_t rings = 0;
  if (::read(doorbell.get(), &rings, sizeof rings) < 0) return;  // nobody rang
}

void Control::Impl::wake_sleepers() {
  const std::uint64_t rings = sleepers;
  if (rings == 0 || !doorbell) return;
  if (::write(doorbell.get(), &rings, sizeof rings) < 0) return;  // rung often enough
}

void Control::wake() {
  const std::lock_guard lock(impl_->mutex);
  impl_->wake_sleepers();
}

void Control::Impl::on_disconnect(const std::string& how) {
  outbox.clear();
  close_socket();
  if (following == Following::gathering) {  // the follower goes to the next
    following = Following::seeking;
    // Perhaps the relay alone has ended. Those that ended with the successor find nobody there.
    if (by_relay && !sent_on && !expelled) --follower->next;
    return wake_follower();
  }
  if (!may_follow()) return lose_for_good(how);
  loss = host_left ? wire::Loss::left : how == kSilent ? wire::Loss::silent : wire::Loss::closed;
  loss_how = how;
  following = Following::seeking;
  newly_lost = true;
  wake_follower();
}

/// fd() is of both, so that those who poll it meanwhile do not wait for a connection that is gone.
void Control::Impl::watch_socket() {
  if (!polled) {
    polled = net::Socket(::epoll_create1(EPOLL_CLOEXEC));
    nudge = net::Socket(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!polled || !nudge) {
      throw BootstrapError(fmt::format("cannot watch the coordinator: {}", std::strerror(errno)));
    }
    epoll_event event{.events = EPOLLIN, .data = {}};
    ::epoll_ctl(polled.get(), EPOLL_CTL_ADD, nudge.get(), &event);
  }
  epoll_event event{.events = EPOLLIN, .data = {}};
  ::epoll_ctl(polled.get(), EPOLL_CTL_ADD, socket.get(), &event);
}

void Control::Impl::close_socket() {
  if (!socket) return;
  ::epoll_ctl(polled.get(), EPOLL_CTL_DEL, socket.get(), nullptr);
  socket.reset();
}

/// Those who poll fd() look again: another thread has read what they wait for.
void Control::Impl::wake_pollers() {
  if (!nudge) return;
  wake_sleepers();
  nudged = true;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(nudge.get(), &one, sizeof one);
}

void Control::Impl::be_awake() {
  if (!nudged.load(std::memory_order_relaxed) || !nudged.exchange(false)) return;
  std::uint64_t drained = 0;
  [[maybe_unused]] const auto got = ::read(nudge.get(), &drained, sizeof drained);
}

void Control::Impl::lose_for_good(const std::string& how) {
  disconnected = how;
  following = Following::no;
  wake_pollers();
  if (goodbye_heard) return;
  if (host_left && !last_word) {
    log(LogLevel::info, "", "the coordinator has left: failures are no longer noticed");
    return;
  }
  for (auto& [key, group] : groups) judge_by_disconnection(group);
}

}  // namespace chorus
