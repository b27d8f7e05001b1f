// What a TCP connection within this machine costs.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "base/files/fd.hpp"
#include "runtime/host/host_probe_cores.hpp"

namespace chorus {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMessage = 64;
constexpr int kTrips = 100;
constexpr std::size_t kPiece = 128 * 1024;
constexpr int kPieces = 16;
constexpr int kStreams = 3;  // in all some 4 ms where nothing else runs

/// Both ends, which do not block; nothing if this machine has no loopback.
std::optional<std::pair<Fd, Fd>> connected_pair() {
  const Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Fd one(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof address;
  if (!listener || !one || ::bind(listener.get(), generic, size) != 0 ||
      ::listen(listener.get(), 1) != 0 || ::getsockname(listener.get(), generic, &size) != 0 ||
      ::connect(one.get(), generic, size) != 0) {
    return std::nullopt;
  }
  Fd other(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!other) return std::nullopt;
  const int yes = 1;
  ::setsockopt(one.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  ::setsockopt(other.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  return std::pair(std::move(one), std::move(other));
}

/// One end, as long as the probe may take.
class End {
 public:
  End(int fd, Turns::Time end) : fd_(fd), buffer_(kPiece), end_(end) {}

  /// False once the connection broke or time is up.
  bool send(std::size_t bytes) {
    return move(bytes, [](int fd, std::byte* data, std::size_t size) {
      return ::send(fd, data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    });
  }
  bool receive(std::size_t bytes) {
    return move(bytes, [](int fd, std::byte* data, std::size_t size) {
      return ::recv(fd, data, size, MSG_DONTWAIT);
    });
  }
  /// Of the calls that moved something, in the last send() or receive().
  [[nodiscard]] double working_s() const { return working_s_; }

 private:
  template <typename Call>
  bool move(std::size_t bytes, const Call& call) {
    working_s_ = 0;
    while (bytes > 0) {
      const auto begin = Clock::now();
      const ssize_t moved = call(fd_, buffer_.data(), std::min(bytes, buffer_.size()));
      if (moved > 0) {
        working_s_ += seconds_since(begin);
        bytes -= static_cast<std::size_t>(moved);
        continue;
      }
      const bool later = moved < 0 && (errno == EAGAIN || errno == EINTR);
      if (!later || Clock::now() > end_) return false;
      if (++waits_ % 64 == 0) ::sched_yield();
    }
    return true;
  }

  int fd_;
  std::vector<std::byte> buffer_;
  double working_s_ = 0;
  unsigned waits_ = 0;
  Turns::Time end_;
};

}  // namespace

std::optional<HostRates::Loopback> probe_loopback(const int (&cores)[2], Turns::Time end) {
  const auto pair = connected_pair();
  if (!pair) return std::nullopt;
  HostRates::Loopback least{.latency_s = 1, .message_s = 1, .byte_s = 1};
  double send_s = 1;
  double receive_s = 1;
  bool whole = true;
  const auto writer = [&](Turns&) {
    End link(pair->first.get(), end);
    for (int trip = 0; trip < kTrips && whole; ++trip) {
      const auto begin = Clock::now();
      whole = whole && link.send(kMessage);
      send_s = std::min(send_s, link.working_s());
      whole = whole && link.receive(kMessage);
      least.latency_s = std::min(least.latency_s, seconds_since(begin) / 2);
      receive_s = std::min(receive_s, link.working_s());
    }
    for (int stream = 0; stream < kStreams && whole; ++stream) {
      const auto begin = Clock::now();
      whole = whole && link.send(kPieces * kPiece) && link.receive(1);
      least.byte_s = std::min(least.byte_s, seconds_since(begin) / (kPieces * kPiece));
    }
  };
  bool echoed = true;
  const auto reader = [&](Turns&) {
    End link(pair->second.get(), end);
    for (int trip = 0; trip < kTrips && echoed; ++trip) {
      echoed = echoed && link.receive(kMessage) && link.send(kMessage);
    }
    for (int stream = 0; stream < kStreams && echoed; ++stream) {
      echoed = echoed && link.receive(kPieces * kPiece) && link.send(1);
    }
  };
  if (!on_cores(cores, end, writer, reader) || !whole || !echoed) return std::nullopt;
  least.message_s = (send_s + receive_s) / 2;
  return least;
}

}  // namespace chorus
