#include "runtime/control/meet.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <span>
#include <utility>

#include "base/host.hpp"
#include "chorus/error.hpp"

namespace chorus::net {
namespace {

using std::chrono::milliseconds;
using wire::Type;

bool becomes_ready(int fd, short events, Deadline deadline) {
  const auto left =
      std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
  pollfd entry{fd, events, 0};
  return ::poll(&entry, 1, static_cast<int>(std::max<long long>(0, left.count()))) > 0;
}

/// The next frame's bytes after the type, copied; nothing if the connection ended or stayed silent.
std::optional<std::pair<Type, wire::Bytes>> next_frame(int fd, wire::Inbox& inbox,
                                                       Deadline deadline) {
  for (;;) {
    if (const auto item = inbox.next()) {
      return std::pair(item->type, wire::Bytes(item->body.begin(), item->body.end()));
    }
    if (!becomes_ready(fd, POLLIN, deadline)) return std::nullopt;
    std::array<std::byte, 4096> buffer;
    const ssize_t got = ::recv(fd, buffer.data(), buffer.size(), 0);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) return std::nullopt;
    inbox.add(std::span(buffer).first(static_cast<std::size_t>(got)));
  }
}

}  // namespace

namespace {

/// None, and the cause.
Socket start_connecting(const Endpoint& endpoint, int& error) {
  Socket socket(
      ::socket(endpoint.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  error = 0;
  if (!socket) {
    error = errno;
    return {};
  }
  tune(socket.get());
  if (::connect(socket.get(), endpoint.address(), endpoint.size()) != 0 && errno != EINPROGRESS) {
    error = errno;
    return {};
  }
  return socket;
}

/// Of one that is ready: 0, or why it is not connected.
int connected(const Socket& socket, const Endpoint& endpoint) {
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  // Trying a free port of this machine again and again, a socket can meet itself.
  if (error == 0 && local_end(socket.get()).text() == endpoint.text()) return ECONNREFUSED;
  return error;
}

}  // namespace

Socket connect_to(const Endpoint& endpoint, Deadline deadline, int& error) {
  Socket socket = start_connecting(endpoint, error);
  if (!socket) return {};
  error = becomes_ready(socket.get(), POLLOUT, deadline) ? connected(socket, endpoint) : ETIMEDOUT;
  if (error != 0) socket.reset();
  return socket;
}

std::vector<Connecting> start_connecting(std::span<const wire::Place> places) {
  std::vector<Connecting> all;
  for (const wire::Place& place : places) {
    Endpoint endpoint;
    int error = 0;
    if (!Endpoint::parse(place.address, place.port, endpoint)) continue;
    if (Socket socket = start_connecting(endpoint, error)) {
      all.push_back({std::move(socket), endpoint});
    }
  }
  return all;
}

std::optional<Connecting> first_connected(std::vector<Connecting>& all, Deadline deadline,
                                          int& error) {
  error = ENETUNREACH;
  while (!all.empty()) {
    std::vector<pollfd> entries;
    for (const Connecting& each : all) entries.push_back({each.socket.get(), POLLOUT, 0});
    const auto left =
        std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
    error = ETIMEDOUT;
    if (left.count() <= 0) return std::nullopt;
    if (::poll(entries.data(), entries.size(), static_cast<int>(left.count())) <= 0) continue;
    const auto ready = std::find_if(entries.begin(), entries.end(),
                                    [](const pollfd& entry) { return entry.revents != 0; });
    const auto chosen = all.begin() + (ready - entries.begin());
    Connecting first = std::move(*chosen);
    all.erase(chosen);
    error = connected(first.socket, first.endpoint);
    if (error == 0) return first;
  }
  return std::nullopt;
}

Handshake shake_hands(Meeting& meeting, const Caller& caller, const std::string& place,
                      Deadline deadline, std::string& why, Endpoint& elsewhere) {
  why = "the connection is closed before the coordinator has answered";
  const auto greeting_frame = next_frame(meeting.socket.get(), meeting.inbox, deadline);
  if (!greeting_frame) return Handshake::broken;
  if (greeting_frame->first != Type::greeting) throw wire::Malformed("it does not greet");
  const wire::Greeting greeting = wire::read_greeting(greeting_frame->second);
  wire::Hello hello;
  hello.version = wire::version();
  hello.nonce = wire::random_nonce();
  hello.rank = caller.rank;
  hello.world_size = caller.world_size;
  hello.pid = static_cast<std::uint32_t>(::getpid());
  hello.host = host_name();
  hello.identity = process_identity();
  hello.may_succeed = true;
  hello.session = caller.session;
  hello.relay_address = caller.relay_address;
  hello.relay_port = caller.relay_port;
  hello.wish = caller.wish;
  hello.place = caller.place;
  wire::Outbox outbox;
  outbox.add(wire::hello_frame(hello, greeting.nonce, caller.secret));
  if (!outbox.flush(meeting.socket.get())) return Handshake::broken;
  const auto answer = next_frame(meeting.socket.get(), meeting.inbox, deadline);
  if (!answer) return Handshake::broken;
  wire::Reader reader(answer->second);
  if (answer->first == Type::later) {
    why = reader.text();
    return Handshake::later;
  }
  if (answer->first == Type::full) return Handshake::full;
  if (answer->first == Type::go_to) {
    const std::string address = reader.text(64);
    const std::uint32_t port = reader.u32();
    if (port > 65535 || !Endpoint::parse(address, static_cast<std::uint16_t>(port), elsewhere)) {
      throw wire::Malformed("it sends a relay nowhere");
    }
    return Handshake::elsewhere;
  }
  if (answer->first == Type::refused) {
    const std::string refusal =
        fmt::format("the coordinator at {} refused rank {}: {}", place, caller.rank, reader.text());
    if (!reader.rest().empty() && reader.u8() != 0) throw GoneOn(refusal);
    throw BootstrapError(refusal);
  }
  const bool from_room = answer->first == Type::waiting_room || answer->first == Type::moved;
  if (answer->first != Type::welcome && !from_room) throw wire::Malformed("it does not welcome");
  if (!same(reader.raw16(), wire::server_proof(caller.secret, greeting.nonce, hello.nonce))) {
    throw BootstrapError(fmt::format(
        "what listens at {} does not know the secret of the id: it is not the coordinator", place));
  }
  if (answer->first == Type::waiting_room) {
    meeting.room.waiting = static_cast<int>(reader.u32());
    return Handshake::answered;
  }
  if (answer->first == Type::moved) {
    meeting.room.place = reader.text(wire::kMaxPlace);
    meeting.room.rank = reader.i32();
    meeting.room.world_size = reader.i32();
    return Handshake::answered;
  }
  meeting.host_text = reader.text();
  meeting.launcher = reader.u8() != 0;
  meeting.hosting = reader.u8() != 0;
  const bool carried = !reader.rest().empty();
  meeting.address = carried ? reader.text(64) : local_end(meeting.socket.get()).host();
  return Handshake::done;
}

}  // namespace chorus::net
