// The coordinator's thread: connections in and out; who is to blame is Judge's business.
#include <fmt/format.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>

#include "base/descriptors.hpp"
#include "base/host.hpp"
#include "base/log.hpp"
#include "chorus/error.hpp"
#include "runtime/coordinator_impl.hpp"

namespace chorus {
namespace {

using std::chrono::milliseconds;
/// A connection that has not proved the secret by then is closed.
constexpr milliseconds kHelloDeadline{5'000};
/// More such connections at once, and the oldest are closed to make room.
constexpr std::size_t kMaxStrangers = 256;
/// Descriptors may come free by themselves; ranks that find none for longer than this are told.
constexpr auto kDescriptorPatience = std::chrono::seconds(1);
constexpr std::size_t kReadAtOnce = 256 * 1024;
/// A rank that lets more than this pile up is broken.
constexpr std::size_t kMaxUnread = 64 << 20;
constexpr std::uint64_t kListenerToken = 0, kWakeToken = 1;

std::string why_closed(int error) {
  if (error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH) {
    return std::string(kSilent);
  }
  return "its connection closed";
}

}  // namespace

Coordinator::Coordinator(int world_size, std::string_view interface_name, std::uint16_t port,
                         const Secret& secret, Host host)
    : impl_(std::make_unique<Impl>(world_size, interface_name, port, secret, host)) {}

Coordinator::Coordinator(int world_size, std::string_view interface_name, std::uint16_t port,
                         const Secret& secret)
    : Coordinator(world_size, interface_name, port, secret, Host{}) {}

Coordinator::~Coordinator() {
  // In a forked child there is no thread to join: what is left of it is the parent's.
  if (impl_->owner_generation != net::fork_generation()) (void)impl_.release();
}

std::string Coordinator::id() const { return impl_->id.text(); }

void Coordinator::report_death(Rank rank, std::string_view how) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->reports.emplace_back(rank, how);
  }
  impl_->wake();
}

bool Coordinator::finished() const { return impl_->finished.load(); }

Coordinator::Impl::Impl(int world_size, std::string_view interface_name, std::uint16_t port,
                        const Secret& known, Host kind)
    : world_size_(world_size), host_(kind) {
  if (world_size < 0 || world_size > wire::kMaxWorld) {
    throw InputError(
        fmt::format("a world of {} ranks: must be in [0, {}]", world_size, wire::kMaxWorld));
  }
  listener_ = net::listen_on(net::local_endpoint(interface_name, port));
  id = {net::local_end(listener_.get()), known};
  epoll_ = net::Socket(::epoll_create1(EPOLL_CLOEXEC));
  wake_ = net::Socket(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  reserve_ = net::Socket(::eventfd(0, EFD_CLOEXEC));
  if (!epoll_ || !wake_ || !reserve_) {
    throw BootstrapError(fmt::format("cannot start a coordinator: {}", std::strerror(errno)));
  }
  watch(listener_.get(), kListenerToken, EPOLLIN, EPOLL_CTL_ADD);
  watch(wake_.get(), kWakeToken, EPOLLIN, EPOLL_CTL_ADD);
  // Signals belong to the program's own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  // Detached, because one that ends by itself may never be joined: the process just ends.
  std::thread([this, end = end_] {
    run();
    const std::lock_guard lock(end->mutex);
    end->reached = true;
    end->changed.notify_all();
  }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Coordinator::Impl::~Impl() {
  stop_ = true;
  wake();
  std::unique_lock lock(end_->mutex);
  end_->changed.wait(lock, [this] { return end_->reached; });
}

void Coordinator::Impl::wake() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
}

void Coordinator::Impl::watch(int fd, std::uint64_t token, std::uint32_t events,
                              int operation) const {
  epoll_event event{};
  event.events = events;
  event.data.u64 = token;
  ::epoll_ctl(epoll_.get(), operation, fd, &event);
}

void Coordinator::Impl::run() {
  ::pthread_setname_np(::pthread_self(), "chorus-coord");
  std::array<epoll_event, 64> events{};
  while (!stop_) {
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                   wait_ms(Clock::now()));
    const Time now = Clock::now();
    // In the order in which they became ready: who died first is heard first.
    for (int i = 0; i < count; ++i) {
      const std::uint64_t token = events[static_cast<std::size_t>(i)].data.u64;
      if (token == kListenerToken) {
        accept_all(now);
      } else if (token == kWakeToken) {
        std::uint64_t drained = 0;
        [[maybe_unused]] const auto got = ::read(wake_.get(), &drained, sizeof drained);
      } else {
        handle(token, events[static_cast<std::size_t>(i)].events, now);
      }
    }
    take_reports(now);
    settle(now);
    if (!host_.joined_often && finished && connections_.size() == num_strangers_) break;
  }
  connections_.clear();
  listener_.reset();
}

int Coordinator::Impl::wait_ms(Time now) const {
  Time next = now + std::chrono::seconds(60);
  for (const auto& session : sessions_) {
    if (const auto deadline = session->judge.deadline()) next = std::min(next, *deadline);
  }
  if (!expelled_.empty()) next = std::min(next, expelled_.front().first);
  if (num_strangers_ > 0) next = std::min(next, now + milliseconds(500));
  const auto wait = std::chrono::duration_cast<milliseconds>(next - now).count() + 1;
  return static_cast<int>(std::clamp<long long>(wait, 0, 60'000));
}

// Strangers.

void Coordinator::Impl::accept_all(Time now) {
  make_room_for_descriptors();  // not before: a successor may never be needed
  for (int i = 0; i < 64; ++i) {
    net::Endpoint peer;
    socklen_t size = sizeof peer.storage;
    const int fd = ::accept4(listener_.get(), reinterpret_cast<sockaddr*>(&peer.storage), &size,
                             SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      if (lacks_descriptors(errno)) wait_for_descriptors(errno, now);
      return;
    }
    if (num_strangers_ >= kMaxStrangers) drop_oldest_stranger();
    const std::uint64_t token = next_token_++;
    Connection& connection = connections_[token];
    connection.socket = net::Socket(fd);
    connection.peer = peer.text();
    connection.nonce = wire::random_nonce();
    connection.since = now;
    ++num_strangers_;
    net::tune(fd);
    watch(fd, token, EPOLLIN, EPOLL_CTL_ADD);
    add(connection, wire::greeting_frame(connection.nonce));
    flush(token, now);
  }
}

void Coordinator::Impl::make_room_for_descriptors() const {
  allow_descriptors(static_cast<std::size_t>(world_size_) + kMaxStrangers + 256);
}

// Whoever cannot come in may be a rank, which would wait out its time to join without a cause.
void Coordinator::Impl::wait_for_descriptors(int error, Time now) {
  drop_oldest_stranger();
  if (now - refused_last_ > kDescriptorPatience) refusing_since_ = now;
  refused_last_ = now;
  if (now - refusing_since_ > kDescriptorPatience) {
    const std::string why =
        fmt::format("the coordinator (pid {} on {}) can take no more connections: {}", ::getpid(),
                    host_name(), why_no_descriptor(error));
    if (sessions_.empty() && !any_session_over_ && world_size_ > 0) open_session(now);
    for (const auto& session : sessions_) session->judge.fail_join(why, now);
    reserve_ = net::Socket();  // those who wait outside come in one by one, to be told
    refusing_since_ = now;
  }
  std::this_thread::sleep_for(milliseconds(10));
}

void Coordinator::Impl::drop_oldest_stranger() {
  for (auto entry = connections_.begin(); entry != connections_.end(); ++entry) {
    if (entry->second.session != nullptr) continue;
    connections_.erase(entry);
    --num_strangers_;
    return;
  }
}

// Connections.

void Coordinator::Impl::handle(std::uint64_t token, std::uint32_t events, Time now) {
  const auto found = connections_.find(token);
  if (found == connections_.end()) return;
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0 &&
      !read(token, found->second, now)) {
    return;
  }
  flush(token, now);
}

/// False when the connection is gone.
bool Coordinator::Impl::read(std::uint64_t token, Connection& connection, Time now) {
  thread_local std::array<std::byte, 64 * 1024> buffer;
  int error = 0;
  bool closed = false;
  try {
    for (std::size_t total = 0; total < kReadAtOnce && !closed;) {
      const ssize_t got = ::recv(connection.socket.get(), buffer.data(), buffer.size(), 0);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
      error = got < 0 ? errno : 0;
      closed = got <= 0;
      if (closed) break;
      total += static_cast<std::size_t>(got);
      if (connection.closing) continue;
      connection.inbox.add(std::span(buffer).first(static_cast<std::size_t>(got)));
      while (const auto item = connection.inbox.next()) {
        hear(token, connection, *item, now);
        if (connection.closing) break;
      }
    }
  } catch (const wire::Malformed& malformed) {
    if (connection.session == nullptr) {
      lose(token, "", now);
      return false;
    }
    expel(token, connection, fmt::format("it sent what no rank sends: {}", malformed.what()), now);
  }
  if (closed) lose(token, why_closed(error), now);
  return !closed;
}

/// The rank is told why before its connection closes; what else it sends is not read.
void Coordinator::Impl::expel(std::uint64_t token, Connection& connection, const std::string& why,
                              Time now) {
  add(connection, wire::Writer(wire::Type::expelled).text(why).share());
  connection.closing = true;
  connection.session->judge.expelled(connection.rank, why, now);
  expelled_.emplace_back(now + kHelloDeadline, token);
}

void Coordinator::Impl::hear(std::uint64_t token, Connection& connection,
                             const wire::Inbox::Item& item, Time now) {
  if (connection.session != nullptr) {
    if (item.type == wire::Type::shared_read) {
      return hear_of_shared(token, connection, wire::Reader(item.body), now);
    }
    // After its farewell a rank says nothing that matters.
    if (connection.session->judge.state(connection.rank) != Judge::State::joined) return;
    connection.session->judge.received(connection.rank, item.type, wire::Reader(item.body), now);
    return;
  }
  if (item.type != wire::Type::hello) throw wire::Malformed("no hello");
  greet(token, connection, wire::read_hello(item.body), now);
}

void Coordinator::Impl::add(Connection& connection, const wire::Frame& frame) {
  if (connection.closing) return;
  connection.outbox.add(frame);
}

/// Processes of this machine read a large frame where it is: one copy for all of them.
void Coordinator::Impl::add_shared(Connection& connection, const wire::Frame& frame,
                                   Shared& shared) {
  if (!connection.shares || connection.closing || frame->size() < SharedFrame::kWorthBytes) {
    return add(connection, frame);
  }
  const auto [entry, is_new] = shared.try_emplace(frame.get());
  if (is_new) entry->second = SharedFrame::make(frame);
  if (!entry->second) return add(connection, frame);
  connection.referred.push_back({++num_referred_, entry->second, frame});
  add(connection, entry->second->reference(num_referred_));
}

void Coordinator::Impl::hear_of_shared(std::uint64_t token, Connection& connection,
                                       wire::Reader body, Time now) {
  const std::uint64_t number = body.u64();
  const bool was_read = body.u8() != 0;
  body.end();
  // In the order in which it was referred to them.
  if (connection.referred.empty() || connection.referred.front().number != number) {
    throw wire::Malformed("it has read what it was not referred to");
  }
  if (!was_read) {
    connection.shares = false;
    add(connection, connection.referred.front().frame);
    flush(token, now);
  }
  connection.referred.pop_front();
}

void Coordinator::Impl::flush(std::uint64_t token, Time now) {
  const auto found = connections_.find(token);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  if (!connection.outbox.flush(connection.socket.get())) {
    // What it said before it died is read first: perhaps a farewell.
    connection.outbox.clear();
    if (connection.closing) lose(token, "its connection closed", now);
    return;
  }
  if (connection.closing && connection.outbox.empty()) return lose(token, "", now);
  const bool wants = !connection.outbox.empty();
  if (wants == connection.wants_output) return;
  connection.wants_output = wants;
  watch(connection.socket.get(), token, wants ? EPOLLIN | EPOLLOUT : EPOLLIN, EPOLL_CTL_MOD);
}

void Coordinator::Impl::lose(std::uint64_t token, std::string_view how, Time now) {
  const auto found = connections_.find(token);
  if (found == connections_.end()) return;
  Session* session = found->second.session;
  const Rank rank = found->second.rank;
  connections_.erase(found);
  if (session == nullptr) {
    --num_strangers_;
    return;
  }
  session->connections[static_cast<std::size_t>(rank)] = 0;
  session->judge.closed(rank, how, now);
}

void Coordinator::Impl::take_reports(Time now) {
  std::vector<std::pair<Rank, std::string>> taken;
  {
    const std::lock_guard lock(mutex);
    taken.swap(reports);
  }
  for (const auto& [rank, how] : taken) {
    if (rank < 0 || rank >= world_size_) continue;
    gone_[rank] = how;
    if (sessions_.empty() && !any_session_over_) open_session(now);
    for (const auto& session : sessions_) {
      if (session->judge.state(rank) != Judge::State::dead) session->judge.ended(rank, how, now);
    }
  }
}

void Coordinator::Impl::settle(Time now) {
  for (const auto& session : sessions_) {
    session->judge.tick(now);
    std::vector<std::uint64_t> touched;
    Shared shared;
    for (const Judge::Order& order : session->judge.take_orders()) {
      const std::uint64_t token = session->connections[static_cast<std::size_t>(order.to)];
      const auto found = connections_.find(token);
      if (found == connections_.end()) continue;
      if (order.close) {
        found->second.closing = true;
      } else if (found->second.outbox.size_bytes() > kMaxUnread) {
        lose(token, "it does not read what it is sent", now);
        continue;
      } else {
        add_shared(found->second, order.frame, shared);
      }
      touched.push_back(token);
    }
    for (const std::uint64_t token : touched) flush(token, now);
  }
  for (auto entry = connections_.begin(); num_strangers_ > 0 && entry != connections_.end();) {
    const bool late =
        entry->second.session == nullptr && entry->second.since + kHelloDeadline < now;
    if (late) --num_strangers_;
    entry = late ? connections_.erase(entry) : std::next(entry);
  }
  for (; !expelled_.empty() && expelled_.front().first <= now; expelled_.pop_front()) {
    lose(expelled_.front().second, "", now);  // it does not even read why
  }
  while (!sessions_.empty() && sessions_.front()->judge.over(now)) {
    const Session* ended = sessions_.front().get();
    const bool connected =
        std::any_of(connections_.begin(), connections_.end(),
                    [&](const auto& entry) { return entry.second.session == ended; });
    if (connected) break;
    // Of a successor that too few came to nothing is over: they may come again.
    any_session_over_ = any_session_over_ || !ended->judge.gave_up();
    sessions_.erase(sessions_.begin());
  }
  finished = sessions_.empty() && any_session_over_;
}

}  // namespace chorus
