// The coordinator's thread: connections in and out; who is to blame is Judge's business.
#include <fmt/format.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "base/descriptors.hpp"
#include "base/host.hpp"
#include "base/log.hpp"
#include "chorus/error.hpp"
#include "runtime/control.hpp"
#include "runtime/control_net.hpp"
#include "runtime/control_wire.hpp"
#include "runtime/coordinator_judge.hpp"

namespace chorus {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;

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

struct Session;

struct Connection {
  net::Socket socket;
  std::string peer;  ///< its address, for the log
  wire::Nonce nonce{};
  Time since{};
  Session* session = nullptr;  ///< none until the secret is proved
  Rank rank = -1;
  wire::Inbox inbox{wire::kMaxHandshake};
  wire::Outbox outbox;
  bool closing = false;  ///< when the outbox is empty
  bool wants_output = false;
};

/// The end of the thread, which outlives the rest of the coordinator by a moment.
struct End {
  std::mutex mutex;
  std::condition_variable changed;
  bool reached = false;
};

/// One joining of all ranks.
struct Session {
  Judge judge;
  std::vector<std::uint64_t> connections;  ///< [world_size], 0: none
};

std::string why_closed(int error) {
  if (error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH) {
    return "its machine stopped answering";
  }
  return "its connection closed";
}

}  // namespace

struct Coordinator::Impl {
  Impl(int world_size, std::string_view interface_name, std::uint16_t port, const Secret& known,
       Host kind);
  ~Impl();

  void run();
  void wake() const;

  net::Id id;
  int owner_generation = net::fork_generation();
  std::atomic<bool> finished{false};
  std::mutex mutex;  ///< guards reports
  std::vector<std::pair<Rank, std::string>> reports;

 private:
  void watch(int fd, std::uint64_t token, std::uint32_t events, int operation) const;
  [[nodiscard]] int wait_ms(Time now) const;
  void accept_all(Time now);
  void make_room_for_descriptors() const;
  void wait_for_descriptors(int error, Time now);
  void drop_oldest_stranger();
  void handle(std::uint64_t token, std::uint32_t events, Time now);
  bool read(std::uint64_t token, Connection& connection, Time now);
  void hear(std::uint64_t token, Connection& connection, const wire::Inbox::Item& item, Time now);
  void greet(std::uint64_t token, Connection& connection, const wire::Hello& hello, Time now);
  std::optional<std::string> why_refused(const wire::Hello& hello, Time now);
  [[nodiscard]] bool is_of_another_job(const wire::Hello& hello) const;
  Session* session_for(Rank rank);
  Session& open_session(Time now);
  void refuse(Connection& connection, const std::string& sentence);
  void add(Connection& connection, const wire::Frame& frame);
  void flush(std::uint64_t token, Time now);
  void lose(std::uint64_t token, std::string_view how, Time now);
  void take_reports(Time now);
  void settle(Time now);

  int world_size_;
  Host host_;
  net::Socket listener_, epoll_, wake_;
  net::Socket reserve_;  ///< a descriptor for the time when there are no more
  std::map<std::uint64_t, Connection> connections_;
  std::uint64_t next_token_ = 2;
  std::size_t num_strangers_ = 0;
  Time refusing_since_, refused_last_;              ///< for want of descriptors
  std::vector<std::unique_ptr<Session>> sessions_;  ///< those that are not over, oldest first
  bool any_session_over_ = false;
  std::map<Rank, std::string> gone_;  ///< processes that the launcher saw end
  std::atomic<bool> stop_{false};
  std::shared_ptr<End> end_ = std::make_shared<End>();
};

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
  make_room_for_descriptors();
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
  if (num_strangers_ > 0) next = std::min(next, now + milliseconds(500));
  const auto wait = std::chrono::duration_cast<milliseconds>(next - now).count() + 1;
  return static_cast<int>(std::clamp<long long>(wait, 0, 60'000));
}

// Strangers.

void Coordinator::Impl::accept_all(Time now) {
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

void Coordinator::Impl::refuse(Connection& connection, const std::string& sentence) {
  log(LogLevel::info, "", fmt::format("refused {}: {}", connection.peer, sentence));
  add(connection, wire::Writer(wire::Type::refused).text(sentence).share());
  connection.closing = true;
}

std::optional<std::string> Coordinator::Impl::why_refused(const wire::Hello& hello, Time now) {
  const std::string who = fmt::format("rank {} (pid {} on {})", hello.rank, hello.pid, hello.host);
  std::optional<std::string> why;
  if (hello.version != wire::version()) {
    why = fmt::format("{} has Chorus {}, the coordinator {}: install one version everywhere", who,
                      hello.version, wire::version());
  } else if (world_size_ == 0 && (hello.world_size < 1 || hello.world_size > wire::kMaxWorld)) {
    return fmt::format("{} joins a world of {} ranks: must be in [1, {}]", who, hello.world_size,
                       wire::kMaxWorld);
  } else if (world_size_ == 0) {
    world_size_ = hello.world_size;
    make_room_for_descriptors();
  }
  if (!why && hello.world_size != world_size_) {
    why = fmt::format("{} joins a world of {} ranks, but this id is for {}", who, hello.world_size,
                      world_size_);
  } else if (!why && (hello.rank < 0 || hello.rank >= world_size_)) {
    why = fmt::format("{} is outside this world of {} ranks", who, world_size_);
  }
  for (const auto& session : sessions_) {
    if (why || session->judge.state(hello.rank) != Judge::State::joined ||
        session->judge.identity(hello.rank) == hello.identity) {
      continue;
    }
    why = fmt::format("two processes claim to be one rank: {} and {}",
                      session->judge.name(hello.rank), who);
  }
  if (!why) return std::nullopt;
  // It knows the secret, so it belongs to this job, which will never be complete.
  if (sessions_.empty() && !any_session_over_) open_session(now);
  for (const auto& session : sessions_) session->judge.fail_join(*why, now);
  return why;
}

/// A place that outlives its first job (MASTER_PORT) is found by the early ranks of the next one
/// while this process still ends. It serves further joinings that this process itself begins.
bool Coordinator::Impl::is_of_another_job(const wire::Hello& hello) const {
  if (!host_.joined_often || host_.launcher || (sessions_.empty() && !any_session_over_)) {
    return false;
  }
  const bool awaited = hello.world_size == world_size_ && hello.rank >= 0 &&
                       hello.rank < world_size_ &&
                       std::any_of(sessions_.begin(), sessions_.end(), [&](const auto& session) {
                         return session->judge.state(hello.rank) == Judge::State::absent;
                       });
  return !awaited && hello.identity != net::process_identity();
}

Session& Coordinator::Impl::open_session(Time now) {
  const std::string host = fmt::format("pid {} on {}", ::getpid(), host_name());
  sessions_.push_back(std::make_unique<Session>(
      Session{Judge({world_size_, host_.launcher, net::process_identity(), host}),
              std::vector<std::uint64_t>(static_cast<std::size_t>(world_size_))}));
  for (const auto& [rank, how] : gone_) sessions_.back()->judge.ended(rank, how, now);
  return *sessions_.back();
}

Session* Coordinator::Impl::session_for(Rank rank) {
  for (const auto& session : sessions_) {
    if (session->judge.state(rank) == Judge::State::absent) return session.get();
  }
  const bool first = sessions_.empty() && !any_session_over_;
  return first || host_.joined_often ? &open_session(Clock::now()) : nullptr;
}

void Coordinator::Impl::greet(std::uint64_t token, Connection& connection, const wire::Hello& hello,
                              Time now) {
  if (!wire::proven(hello, connection.nonce, id.secret)) {
    return refuse(connection, hello.version == wire::version()
                                  ? "the secret is not the one of this id"
                                  : fmt::format("it has Chorus {}, the coordinator {}",
                                                hello.version, wire::version()));
  }
  if (is_of_another_job(hello)) {
    add(connection, wire::Writer(wire::Type::later)
                        .text(fmt::format("{} ranks met there before, and pid {} on {}, which "
                                          "holds the place, has not joined again",
                                          world_size_, ::getpid(), host_name()))
                        .share());
    connection.closing = true;
    return;
  }
  if (const auto why = why_refused(hello, now)) return refuse(connection, *why);
  Session* session = session_for(hello.rank);
  if (session == nullptr) {
    return refuse(connection,
                  fmt::format("rank {} has joined with this id before; make a new id", hello.rank));
  }
  if (const auto why = session->judge.admit(hello, now)) return refuse(connection, *why);
  connection.session = session;
  connection.rank = hello.rank;
  connection.inbox.set_limit(wire::kMaxFromRank);
  session->connections[static_cast<std::size_t>(hello.rank)] = token;
  --num_strangers_;
  wire::Writer welcome(wire::Type::welcome);
  welcome.raw(wire::server_proof(id.secret, connection.nonce, hello.nonce));
  welcome.text(fmt::format("pid {} on {}", ::getpid(), host_name()));
  welcome.u8(host_.launcher ? 1 : 0);
  welcome.u8(hello.identity == net::process_identity() ? 1 : 0);
  add(connection, welcome.share());
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
    lose(token, fmt::format("it sent what no rank sends: {}", malformed.what()), now);
    return false;
  }
  if (closed) lose(token, why_closed(error), now);
  return !closed;
}

void Coordinator::Impl::hear(std::uint64_t token, Connection& connection,
                             const wire::Inbox::Item& item, Time now) {
  if (connection.session != nullptr) {
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
    for (const Judge::Order& order : session->judge.take_orders()) {
      const std::uint64_t token = session->connections[static_cast<std::size_t>(order.to)];
      const auto found = connections_.find(token);
      if (found == connections_.end()) continue;
      if (order.close) {
        found->second.closing = true;
      } else if (found->second.outbox.size_bytes() > kMaxUnread) {
        lose(token, "it reads nothing of what it is told", now);
        continue;
      } else {
        add(found->second, order.frame);
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
  while (!sessions_.empty() && sessions_.front()->judge.over(now)) {
    const Session* ended = sessions_.front().get();
    const bool connected =
        std::any_of(connections_.begin(), connections_.end(),
                    [&](const auto& entry) { return entry.second.session == ended; });
    if (connected) break;
    sessions_.erase(sessions_.begin());
    any_session_over_ = true;
  }
  finished = sessions_.empty() && any_session_over_;
}

}  // namespace chorus
