#include "runtime/control/wires.hpp"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include "base/files/descriptors.hpp"
#include "base/host.hpp"
#include "chorus/error.hpp"
#include "runtime/control/coordinator/judge.hpp"

namespace chorus {
namespace {

using std::chrono::milliseconds;
/// A connection that has not proved the secret by then is closed, and so is one that was to be
/// closed and does not read what it is told.
constexpr milliseconds kWithin{5'000};
/// More that have not proved it, and the oldest are closed to make room.
constexpr std::size_t kMaxStrangers = 256;
/// Those that are not that old are about to: more of them wait outside meanwhile.
constexpr milliseconds kIdle{100};
/// Descriptors may come free by themselves; those that find none for longer than this are told.
constexpr auto kDescriptorPatience = std::chrono::seconds(1);
constexpr std::size_t kReadAtOnce = 256 * 1024;
/// Who lets more than this pile up is broken.
constexpr std::size_t kMaxUnread = 64 << 20;
constexpr Wires::Token kWakeToken = 0;

std::string why_closed(int error) {
  if (error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH) {
    return std::string(kSilent);
  }
  return "its connection closed";
}

}  // namespace

SocketWires::SocketWires(WireEnd& end)
    : end_(end),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      reserve_(::eventfd(0, EFD_CLOEXEC)) {
  if (!epoll_ || !wake_ || !reserve_) {
    throw BootstrapError(fmt::format("cannot start a coordinator: {}", std::strerror(errno)));
  }
  watch(wake_.get(), kWakeToken, EPOLLIN, EPOLL_CTL_ADD);
}

void SocketWires::listen(net::Socket listener) {
  const Token token = next_token_++;
  watch(listener.get(), token, EPOLLIN, EPOLL_CTL_ADD);
  listeners_.emplace(token, std::move(listener));
}

Wires::Token SocketWires::adopt(net::Socket socket, wire::Inbox inbox) {
  const Token token = next_token_++;
  Connection& connection = connections_[token];
  watch(socket.get(), token, EPOLLIN, EPOLL_CTL_ADD);
  connection.socket = std::move(socket);
  connection.inbox = std::move(inbox);
  connection.trusted = true;
  return token;
}

void SocketWires::wake() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
}

void SocketWires::watch(int fd, Token token, std::uint32_t events, int operation) const {
  epoll_event event{};
  event.events = events;
  event.data.u64 = token;
  ::epoll_ctl(epoll_.get(), operation, fd, &event);
}

void SocketWires::run(const std::atomic<bool>& stop) {
  std::array<epoll_event, 64> events{};
  while (!stop) {
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                   wait_ms(Clock::now()));
    const Time now = Clock::now();
    // In the order in which they became ready: who died first is heard first.
    for (int i = 0; i < count; ++i) {
      const Token token = events[static_cast<std::size_t>(i)].data.u64;
      if (token == kWakeToken) {
        std::uint64_t drained = 0;
        [[maybe_unused]] const auto got = ::read(wake_.get(), &drained, sizeof drained);
      } else if (const auto listener = listeners_.find(token); listener != listeners_.end()) {
        accept_all(listener->second.get(), now);
      } else {
        handle(token, events[static_cast<std::size_t>(i)].events, now);
      }
    }
    end_.settle(now);
    for (std::size_t i = 0; i < touched_.size(); ++i) flush(touched_[i], now);
    touched_.clear();
    shared_.clear();
    close_late(now);
    if (queueing_ && (num_unauthenticated_ < kMaxStrangers || has_idle_unauthenticated(now)))
      let_queue(false);
    if (end_.over() && connections_.size() == num_unauthenticated_) break;
  }
  connections_.clear();
  listeners_.clear();
}

int SocketWires::wait_ms(Time now) const {
  Time next = now + std::chrono::seconds(60);
  if (const auto deadline = end_.deadline()) next = std::min(next, *deadline);
  if (queueing_) next = std::min(next, now + kIdle);
  if (num_unauthenticated_ + num_finishing_ > 0) next = std::min(next, now + milliseconds(500));
  const auto wait = std::chrono::duration_cast<milliseconds>(next - now).count() + 1;
  return static_cast<int>(std::clamp<long long>(wait, 0, 60'000));
}

// Unauthenticated peers.

void SocketWires::accept_all(int listener, Time now) {
  // Not before: a successor may never be needed.
  allow_descriptors(expected_ + kMaxStrangers + 256);
  for (int i = 0; i < 64; ++i) {
    if (num_unauthenticated_ >= kMaxStrangers && !has_idle_unauthenticated(now))
      return let_queue(true);
    net::Endpoint peer;
    socklen_t size = sizeof peer.storage;
    const int fd = ::accept4(listener, reinterpret_cast<sockaddr*>(&peer.storage), &size,
                             SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      if (lacks_descriptors(errno)) wait_for_descriptors(errno, now);
      return;
    }
    if (num_unauthenticated_ >= kMaxStrangers) drop_oldest_unauthenticated();
    const Token token = next_token_++;
    Connection& connection = connections_[token];
    connection.socket = net::Socket(fd);
    const bool is_local = peer.storage.ss_family == AF_UNIX;
    connection.peer = is_local ? "this host" : peer.text();
    connection.since = now;
    ++num_unauthenticated_;
    if (!is_local) net::tune(fd);
    watch(fd, token, EPOLLIN, EPOLL_CTL_ADD);
    end_.opened(token, now);
    flush(token, now);
  }
}

// Whoever cannot come in may be a rank, which would wait out its time to join without a cause.
void SocketWires::wait_for_descriptors(int error, Time now) {
  drop_oldest_unauthenticated();
  if (now - refused_last_ > kDescriptorPatience) refusing_since_ = now;
  refused_last_ = now;
  if (now - refusing_since_ > kDescriptorPatience) {
    end_.cannot_take(why_no_descriptor(error), now);
    reserve_ = net::Socket();  // those who wait outside come in one by one, to be told
    refusing_since_ = now;
  }
  std::this_thread::sleep_for(milliseconds(10));
}

std::map<Wires::Token, SocketWires::Connection>::iterator SocketWires::oldest_unauthenticated() {
  return std::find_if(connections_.begin(), connections_.end(),
                      [this](const auto& entry) { return is_unauthenticated(entry.second); });
}

void SocketWires::drop_oldest_unauthenticated() {
  const auto oldest = oldest_unauthenticated();
  if (oldest == connections_.end()) return;
  connections_.erase(oldest);
  --num_unauthenticated_;
}

bool SocketWires::has_idle_unauthenticated(Time now) {
  const auto oldest = oldest_unauthenticated();
  return oldest != connections_.end() && oldest->second.since + kIdle < now;
}

/// Many who come at once wait outside, and are not sent away.
void SocketWires::let_queue(bool queue) {
  if (std::exchange(queueing_, queue) == queue) return;
  for (const auto& [token, listener] : listeners_) {
    watch(listener.get(), token, queue ? 0U : EPOLLIN, EPOLL_CTL_MOD);
  }
}

void SocketWires::close_late(Time now) {
  if (num_unauthenticated_ + num_finishing_ == 0) return;
  for (auto entry = connections_.begin(); entry != connections_.end();) {
    const bool unauthenticated = is_unauthenticated(entry->second);
    const bool late =
        (unauthenticated || entry->second.finishing) && entry->second.since + kWithin < now;
    if (late) --(unauthenticated ? num_unauthenticated_ : num_finishing_);
    entry = late ? connections_.erase(entry) : std::next(entry);
  }
}

// Connections.

void SocketWires::trust(Token of, std::size_t limit, bool shares) {
  const auto found = connections_.find(of);
  if (found == connections_.end()) return;
  if (is_unauthenticated(found->second)) --num_unauthenticated_;
  found->second.trusted = true;
  found->second.shares = shares;
  found->second.inbox.set_limit(limit);
}

void SocketWires::finish(Token of) {
  const auto found = connections_.find(of);
  if (found == connections_.end() || found->second.finishing) return;
  if (is_unauthenticated(found->second)) --num_unauthenticated_;
  ++num_finishing_;
  found->second.finishing = true;
  found->second.since = Clock::now();
  touch(of, found->second);
}

std::size_t SocketWires::unsent(Token of) const {
  const auto found = connections_.find(of);
  return found == connections_.end() ? 0 : found->second.outbox.size_bytes();
}

std::string SocketWires::peer(Token of) const {
  const auto found = connections_.find(of);
  return found == connections_.end() ? "" : found->second.peer;
}

void SocketWires::handle(Token token, std::uint32_t events, Time now) {
  const auto found = connections_.find(token);
  if (found == connections_.end()) return;
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0 &&
      !read(token, found->second, now)) {
    return;
  }
  flush(token, now);
}

/// False when the connection is gone.
bool SocketWires::read(Token token, Connection& connection, Time now) {
  thread_local std::array<std::byte, 64 * 1024> buffer;
  int error = 0;
  bool closed = false;
  try {
    while (const auto item = connection.inbox.next()) {  // that came with the handshake
      hear(token, connection, *item, now);
      if (connection.finishing) break;
    }
    for (std::size_t total = 0; total < kReadAtOnce && !closed;) {
      const ssize_t got = ::recv(connection.socket.get(), buffer.data(), buffer.size(), 0);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
      error = got < 0 ? errno : 0;
      closed = got <= 0;
      if (closed) break;
      total += static_cast<std::size_t>(got);
      if (connection.finishing) continue;
      connection.inbox.add(std::span(buffer).first(static_cast<std::size_t>(got)));
      while (const auto item = connection.inbox.next()) {
        hear(token, connection, *item, now);
        if (connection.finishing) break;
      }
    }
  } catch (const wire::Malformed& malformed) {
    if (!connection.trusted) {
      lose(token, "", now);
      return false;
    }
    end_.malformed(token, malformed.what(), now);
  }
  if (closed) lose(token, why_closed(error), now);
  return !closed;
}

void SocketWires::hear(Token token, Connection& connection, const wire::Inbox::Item& item,
                       Time now) {
  if (connection.trusted && item.type == wire::Type::shared_read) {
    return hear_of_shared(token, connection, wire::Reader(item.body));
  }
  end_.heard(token, item.type, item.body, now);
}

void SocketWires::touch(Token token, Connection& connection) {
  if (std::exchange(connection.touched, true)) return;
  touched_.push_back(token);
}

/// Processes of this machine read a large frame where it is: one copy for all of them.
void SocketWires::send(Token to, const wire::Frame& frame) {
  const auto found = connections_.find(to);
  if (found == connections_.end() || found->second.finishing) return;
  Connection& connection = found->second;
  touch(to, connection);
  connection.overfull = connection.outbox.size_bytes() > kMaxUnread;
  if (!connection.shares || frame->size() < SharedFrame::kWorthBytes) {
    return connection.outbox.add(frame);
  }
  const auto [entry, is_new] = shared_.try_emplace(frame.get());
  if (is_new) entry->second = SharedFrame::make(frame);
  if (!entry->second) return connection.outbox.add(frame);
  connection.referred.push_back({++num_referred_, entry->second, frame});
  connection.outbox.add(entry->second->reference(num_referred_));
}

void SocketWires::send(Token to, const wire::Frame& head, std::span<const std::byte> rest,
                       std::shared_ptr<const void> owner) {
  const auto found = connections_.find(to);
  if (found == connections_.end() || found->second.finishing) return;
  touch(to, found->second);
  found->second.overfull = found->second.outbox.size_bytes() > kMaxUnread;
  found->second.outbox.add(head);
  found->second.outbox.add(rest, std::move(owner));
}

void SocketWires::hear_of_shared(Token token, Connection& connection, wire::Reader body) {
  const std::uint64_t number = body.u64();
  const bool was_read = body.u8() != 0;
  body.end();
  // In the order in which it was referred to them.
  if (connection.referred.empty() || connection.referred.front().number != number) {
    throw wire::Malformed("it has read what it was not referred to");
  }
  if (!was_read) {
    connection.shares = false;
    touch(token, connection);
    connection.outbox.add(connection.referred.front().frame);
  }
  connection.referred.pop_front();
}

void SocketWires::flush(Token token, Time now) {
  const auto found = connections_.find(token);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  connection.touched = false;
  if (!connection.outbox.flush(connection.socket.get())) {
    // What it said before it died is read first: perhaps a goodbye.
    connection.outbox.clear();
    if (connection.finishing) lose(token, "its connection closed", now);
    return;
  }
  if (connection.finishing && connection.outbox.empty()) return lose(token, "", now);
  if (connection.overfull) {
    return lose(token, "it does not read what it is sent", now);
  }
  const bool wants = !connection.outbox.empty();
  if (wants == connection.wants_output) return;
  connection.wants_output = wants;
  watch(connection.socket.get(), token, wants ? EPOLLIN | EPOLLOUT : EPOLLIN, EPOLL_CTL_MOD);
}

void SocketWires::lose(Token token, std::string_view how, Time now) {
  const auto found = connections_.find(token);
  if (found == connections_.end()) return;
  const bool unauthenticated = is_unauthenticated(found->second);
  const bool finishing = found->second.finishing;
  if (unauthenticated) --num_unauthenticated_;
  if (finishing) --num_finishing_;
  connections_.erase(found);
  if (!unauthenticated && !finishing) end_.closed(token, how, now);
}

}  // namespace chorus
