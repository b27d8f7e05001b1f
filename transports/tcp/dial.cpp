#include "transports/tcp/dial.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "chorus/error.hpp"

namespace chorus {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPause = std::chrono::milliseconds(50);

}  // namespace

TcpDial::TcpDial(const TcpPath& path, Rank peer_rank, int socket, bool same_kernel,
                 std::uint32_t incarnation)
    : path_(path),
      peer_rank_(peer_rank),
      socket_(socket),
      same_kernel_(same_kernel),
      incarnation_(incarnation) {}

Fd TcpDial::progress(const TcpHub& hub, const Nonce& listener) {
  if (state_ == State::idle) {
    if (Clock::now() < not_before_) return {};
    try {
      fd_ = start_connecting(path_.own, path_.peer, path_.interface);
    } catch (const DescriptorError&) {
      throw;
    } catch (const LinkError& error) {
      retry(error.what());
      return {};
    }
    tune(fd_.get(), same_kernel_);
    state_ = State::connecting;
  }
  if (state_ == State::connecting && connected()) say_hello(hub, listener);
  if (state_ == State::greeted && hear_welcome(hub, listener)) return std::move(fd_);
  return {};
}

bool TcpDial::connected() {
  pollfd ready{fd_.get(), POLLOUT, 0};
  if (::poll(&ready, 1, 0) != 1) return false;
  int error = 0;
  socklen_t size = sizeof error;
  if (::getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error == 0) return true;
  // A rank listens before it publishes its address. Where nobody listens it has gone.
  hopeless_ = error == ECONNREFUSED;
  retry(std::strerror(error));
  return false;
}

void TcpDial::say_hello(const TcpHub& hub, const Nonce& listener) {
  hello_ = {};
  hello_.rank = hub.rank();
  hello_.peer = peer_rank_;
  hello_.socket = static_cast<std::uint32_t>(socket_);
  hello_.incarnation = incarnation_;
  hello_.nonce = Secret::random().bytes;
  hello_.proof = hello_proof(hub.secret(), listener, hello_);
  if (::send(fd_.get(), &hello_, sizeof hello_, MSG_DONTWAIT | MSG_NOSIGNAL) != sizeof hello_) {
    return retry("it closed the connection at once");
  }
  received_ = 0;
  state_ = State::greeted;
  obstacle_ = "it has not answered";
}

bool TcpDial::hear_welcome(const TcpHub& hub, const Nonce& listener) {
  // No byte more than the welcome: frames may be right behind it.
  const ssize_t got = ::recv(fd_.get(), reinterpret_cast<char*>(&welcome_) + received_,
                             sizeof welcome_ - received_, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (got <= 0) {
    retry("it closed the connection before it answered");
    return false;
  }
  received_ += static_cast<std::size_t>(got);
  if (received_ < sizeof welcome_) return false;
  if (welcome_.magic == TcpWelcome::kMagic &&
      same(welcome_.proof, welcome_proof(hub.secret(), listener, hello_))) {
    return true;
  }
  retry("whoever listens there does not know the communicator's secret");
  return false;
}

void TcpDial::retry(std::string why) {
  fd_.reset();
  state_ = State::idle;
  obstacle_ = std::move(why);
  not_before_ = Clock::now() + kPause;
}

void TcpDial::append_wake_fds(std::vector<pollfd>& fds) const {
  if (fd_) fds.push_back(wake_fd(fd_.get(), state_ == State::connecting));
}

}  // namespace chorus
