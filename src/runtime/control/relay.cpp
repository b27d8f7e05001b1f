#include "runtime/control/relay.hpp"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <thread>

#include "base/text/log.hpp"
#include "chorus/error.hpp"
#include "runtime/control/coordinator/impl.hpp"

namespace chorus {
namespace {

using std::chrono::milliseconds;
using Clock = Wires::Clock;

/// How long those that it carries have to leave, once the rank has left in whose process it is.
constexpr milliseconds kStays{1'000};
constexpr milliseconds kLooksEvery{5};
/// How long those who have come already are told that there is no way up.
constexpr milliseconds kTells{200};

struct Name {
  sockaddr_un address{};
  socklen_t size = 0;

  explicit Name(const std::string& name) {
    address.sun_family = AF_UNIX;
    // Behind a zero byte: a name that is no file, and ends with its last socket.
    const std::size_t length = std::min(name.size(), sizeof address.sun_path - 1);
    std::memcpy(address.sun_path + 1, name.data(), length);
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  }
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

net::Socket local_socket() {
  return net::Socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

}  // namespace

std::string Relay::name(const Secret& secret, const net::Endpoint& up, std::uint64_t session,
                        int index) {
  return "chorus-" + secret.derive(fmt::format("relay {} {} {}", up.text(), session, index)).text();
}

net::Socket Relay::listen(const std::string& name) {
  net::Socket socket = local_socket();
  const Name place(name);
  if (!socket || ::bind(socket.get(), place.get(), place.size) != 0 ||
      ::listen(socket.get(), SOMAXCONN) != 0) {
    return {};
  }
  return socket;
}

net::Socket Relay::connect(const std::string& name) {
  net::Socket socket = local_socket();
  const Name place(name);
  // Its queue is full for a moment, or nobody listens.
  if (!socket || ::connect(socket.get(), place.get(), place.size) != 0) return {};
  return socket;
}

struct Relay::Impl {
  Impl(int world_size, const Secret& secret) : end(world_size, secret), wires(end) {
    end.speak_over(wires);
  }

  int owner_generation = net::fork_generation();
  RelayEnd end;
  SocketWires wires;
  std::optional<WireThread> thread;
};

Relay::Relay(net::Socket listener, net::Socket others, net::Meeting&& up, int world_size,
             const Secret& secret)
    : impl_(std::make_unique<Impl>(world_size, secret)) {
  std::string address = net::local_end(up.socket.get()).host();
  up.inbox.set_limit(UINT32_MAX);
  impl_->end.rises(impl_->wires.adopt(std::move(up.socket), std::move(up.inbox)),
                   std::move(address));
  impl_->wires.expect(RelayEnd::kRanks + RelayEnd::kRelays);
  impl_->wires.listen(std::move(listener));
  impl_->wires.listen(std::move(others));
  impl_->thread.emplace("chorus-relay", impl_->wires);
}

Relay::Relay(net::Socket listener, const std::string& why, int world_size, const Secret& secret)
    : impl_(std::make_unique<Impl>(world_size, secret)) {
  impl_->end.cannot_rise(why);
  impl_->wires.listen(std::move(listener));
  impl_->thread.emplace("chorus-relay", impl_->wires);
  std::this_thread::sleep_for(kTells);
}

Relay::~Relay() {
  // In a forked child there is no thread to join: what is left of it is the parent's.
  if (impl_->owner_generation != net::fork_generation()) {
    (void)impl_.release();
    return;
  }
  const auto until = Clock::now() + kStays;
  while (impl_->end.carried() > 0 && Clock::now() < until) std::this_thread::sleep_for(kLooksEvery);
}

}  // namespace chorus
