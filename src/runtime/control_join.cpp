// Meeting: connect, prove the secret to each other, wait for all.
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include "base/host.hpp"
#include "base/log.hpp"
#include "chorus/error.hpp"
#include "runtime/control.hpp"
#include "runtime/control_impl.hpp"
#include "runtime/lateness.hpp"

namespace chorus {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;
using wire::Type;

/// An id exists once its coordinator listens, so a refused connection means that it has ended.
constexpr milliseconds kRefusedFor{1'000};
constexpr milliseconds kPause{30};
/// How long one attempt waits for the coordinator's next word.
constexpr milliseconds kHandshake{5'000};
constexpr milliseconds kAnswer{500};
/// How often those who wait for others look whether that is worth a word.
constexpr milliseconds kLook{100};

bool ready(int fd, short events, Time deadline) {
  const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
  pollfd entry{fd, events, 0};
  return ::poll(&entry, 1, static_cast<int>(std::max<long long>(0, left.count()))) > 0;
}

/// A connected socket, or none and the cause in `error`.
net::Socket connect_to(const net::Endpoint& endpoint, Time deadline, int& error) {
  net::Socket socket(
      ::socket(endpoint.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  error = ETIMEDOUT;
  if (!socket) {
    error = errno;
    return {};
  }
  net::tune(socket.get());
  if (::connect(socket.get(), endpoint.address(), endpoint.size()) != 0) {
    if (errno != EINPROGRESS) {
      error = errno;
      return {};
    }
    if (!ready(socket.get(), POLLOUT, deadline)) return {};
    socklen_t size = sizeof error;
    ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return {};
  }
  // Trying a free port of this machine again and again, a socket can meet itself.
  if (net::local_end(socket.get()).text() == endpoint.text()) {
    error = ECONNREFUSED;
    return {};
  }
  error = 0;
  return socket;
}

/// The next frame's bytes after the type, copied; nothing if the connection ended or stayed silent.
std::optional<std::pair<Type, wire::Bytes>> next_frame(int fd, wire::Inbox& inbox, Time deadline) {
  for (;;) {
    if (const auto item = inbox.next()) {
      return std::pair(item->type, wire::Bytes(item->body.begin(), item->body.end()));
    }
    if (!ready(fd, POLLIN, deadline)) return std::nullopt;
    std::array<std::byte, 4096> buffer;
    const ssize_t got = ::recv(fd, buffer.data(), buffer.size(), 0);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) return std::nullopt;
    inbox.add(std::span(buffer).first(static_cast<std::size_t>(got)));
  }
}

enum class Handshake { done, broken, later };

/// Both proofs over the connection `impl.socket`. `why` says why one has to try again: it broke
/// before the answer, or the answer is to come later.
Handshake shake_hands(Control::Impl& impl, Time deadline, std::string& why) {
  why = "the connection is closed before the coordinator has answered";
  const auto greeting_frame = next_frame(impl.socket.get(), impl.inbox, deadline);
  if (!greeting_frame) return Handshake::broken;
  if (greeting_frame->first != Type::greeting) throw wire::Malformed("it does not greet");
  const wire::Greeting greeting = wire::read_greeting(greeting_frame->second);
  wire::Hello hello;
  hello.version = wire::version();
  hello.nonce = wire::random_nonce();
  hello.rank = impl.rank;
  hello.world_size = impl.world_size;
  hello.pid = static_cast<std::uint32_t>(::getpid());
  hello.host = host_name();
  hello.identity = net::process_identity();
  impl.outbox.add(wire::hello_frame(hello, greeting.nonce, impl.secret));
  if (!impl.outbox.flush(impl.socket.get())) return Handshake::broken;
  const auto answer = next_frame(impl.socket.get(), impl.inbox, deadline);
  if (!answer) return Handshake::broken;
  wire::Reader reader(answer->second);
  if (answer->first == Type::later) {
    why = reader.text();
    return Handshake::later;
  }
  if (answer->first == Type::refused) {
    throw BootstrapError(fmt::format("the coordinator at {} refused rank {}: {}", impl.coordinator,
                                     impl.rank, reader.text()));
  }
  if (answer->first != Type::welcome) throw wire::Malformed("it does not welcome");
  if (!same(reader.raw16(), wire::server_proof(impl.secret, greeting.nonce, hello.nonce))) {
    throw BootstrapError(fmt::format(
        "what listens at {} does not know the secret of the id: it is not the coordinator",
        impl.coordinator));
  }
  impl.host_text = reader.text();
  impl.launcher = reader.u8() != 0;
  impl.hosting = reader.u8() != 0;
  return Handshake::done;
}

void connect_and_shake_hands(Control::Impl& impl, const net::Endpoint& endpoint, Time deadline,
                             int timeout_ms) {
  Time last_listened = Clock::now();
  std::string later;  // what a coordinator there said, another job's perhaps: ours comes after it
  std::string why = "nobody answers";
  do {
    int error = 0;
    impl.inbox = wire::Inbox(wire::kMaxHandshake);
    impl.outbox.clear();
    impl.socket = connect_to(endpoint, deadline, error);
    if (error == 0) {
      last_listened = Clock::now();
      try {
        const Handshake end = shake_hands(impl, std::min(deadline, Clock::now() + kHandshake), why);
        if (end == Handshake::done) return;
        if (end == Handshake::later) later = why;
      } catch (const wire::Malformed& malformed) {
        throw BootstrapError(fmt::format("what listens at {} is no Chorus coordinator: {}",
                                         impl.coordinator, malformed.what()));
      }
    } else {
      why = std::strerror(error);
    }
    if (error == ECONNREFUSED && later.empty() && Clock::now() - last_listened > kRefusedFor) {
      throw BootstrapError(fmt::format(
          "rank {}: nobody listens at {} (any more): the process that made the id, mostly "
          "rank 0's, has ended",
          impl.rank, impl.coordinator));
    }
    if (error == ENETUNREACH && endpoint.is_loopback()) {
      throw BootstrapError(
          fmt::format("rank {}: no way to {}: the loopback interface is down (ip link set lo up)",
                      impl.rank, impl.coordinator));
    }
    std::this_thread::sleep_for(kPause);
  } while (Clock::now() < deadline);
  if (!later.empty()) {
    throw BootstrapError(fmt::format(
        "rank {}: not let in at {} for {} ms: {}{}; is another job still running there?", impl.rank,
        impl.coordinator, timeout_ms, later,
        why == later ? "" : fmt::format("; in the end: {}", why)));
  }
  throw BootstrapError(
      fmt::format("rank {}: no coordinator at {} after {} ms: {}; is the process that made the id, "
                  "mostly rank 0's, still running and within reach?",
                  impl.rank, impl.coordinator, timeout_ms, why));
}

}  // namespace

void Control::Impl::ask_for_missing(std::unique_lock<std::mutex>& lock) {
  join_missing.reset();
  send(wire::Writer(Type::join_query).share());
  wait(lock, Clock::now() + kAnswer,
       [&] { return joined || join_failure || disconnected || join_missing; });
}

void Control::Impl::wait_for_all(Time deadline, int timeout_ms, int warn_after_ms) {
  std::unique_lock lock(mutex);
  const auto settled = [&] { return joined || join_failure || disconnected; };
  const Time start = Clock::now();
  Lateness lateness(warn_after_ms);
  while (!wait(lock, std::min(deadline, Clock::now() + kLook), settled)) {
    const bool over = Clock::now() >= deadline;
    const auto late_s = lateness.due(std::chrono::nanoseconds(Clock::now() - start).count());
    if (late_s || over) ask_for_missing(lock);
    if (over) break;
    if (!late_s || !join_missing || join_missing->empty() || !join_speaks) continue;
    log(LogLevel::warn, fmt::format("[rank {}/{}]", rank, world_size),
        fmt::format("still waiting for {} to join at {} after {:.3g} s{}{}", *join_missing,
                    coordinator, *late_s, join_refusals.empty() ? "" : "; ", join_refusals));
  }
  if (joined) return;
  if (join_failure) {
    failure = join_failure;
  } else if (disconnected) {
    failure = disconnection(nullptr);
  } else {
    failure = fmt::format("rank {} waited {} ms for {} to join at {}{}{}", rank, timeout_ms,
                          join_missing ? *join_missing : "the coordinator", coordinator,
                          join_refusals.empty() ? "" : "; ", join_refusals);
  }
  say_farewell(lock);
  throw BootstrapError(*failure);
}

std::shared_ptr<Control> Control::join(const std::string& id, Rank rank, int world_size,
                                       int timeout_ms, int warn_after_ms) {
  const net::Id parsed = net::Id::parse(id);
  if (world_size < 1 || world_size > wire::kMaxWorld || rank < 0 || rank >= world_size) {
    throw InputError(fmt::format("rank {} of {}: the world size must be in [1, {}], the rank below",
                                 rank, world_size, wire::kMaxWorld));
  }
  const auto deadline = Clock::now() + milliseconds(timeout_ms);
  auto impl = std::make_unique<Impl>();
  impl->rank = rank;
  impl->world_size = world_size;
  impl->secret = parsed.secret;
  impl->coordinator = parsed.endpoint.text();
  connect_and_shake_hands(*impl, parsed.endpoint, deadline, timeout_ms);
  impl->address = net::local_end(impl->socket.get()).host();
  impl->inbox.set_limit(2 * wire::kMaxText);
  impl->wait_for_all(deadline, timeout_ms, warn_after_ms);
  return std::shared_ptr<Control>(new Control(std::move(impl)));
}

}  // namespace chorus
