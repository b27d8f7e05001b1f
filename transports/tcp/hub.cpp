#include "transports/tcp/hub.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/files/descriptors.hpp"
#include "transports/tcp/link.hpp"

namespace chorus {
namespace {

constexpr auto kPatience = std::chrono::seconds(10);
/// All paths of a link begin to connect at the same time, to the same listener's process: what has
/// not come so long after the first is not to be had, or joins later. A job waits this long once.
constexpr auto kPatienceForPaths = std::chrono::milliseconds(250);
constexpr auto kPatienceOnceGivenUp = std::chrono::milliseconds(100);
/// Sockets, above which a rank that sleeps asks for all in two calls of the kernel. At four both
/// take as long (0.6 µs on an AMD EPYC), a socket more or less is a tenth of it.
constexpr std::size_t kPolledEach = 4;

}  // namespace

TcpHub::TcpHub(const Endpoint& address, const Secret& secret, Rank rank, int world_size)
    : TcpHub(std::vector<Rail>{{.interface = {}, .address = address}}, secret, rank, world_size) {}

TcpHub::TcpHub(std::vector<Rail> rails, const Secret& secret, Rank rank, int world_size)
    : secret_(secret),
      nonce_(Secret::random().bytes),
      rank_(rank),
      world_size_(world_size),
      cores_to_spare_(world_size <= ::sysconf(_SC_NPROCESSORS_ONLN)),
      rails_(std::move(rails)) {
  for (Rail& rail : rails_) {
    // Routes lead to the first, as they always have; a further one is one cable and no other.
    const bool first = listeners_.empty();
    listeners_.push_back(listen_on(rail.address, first ? std::string() : rail.interface));
    rail.address = Endpoint::bound(listeners_.back().get());
  }
  allow_descriptors(most_connections() + 256);
}

void TcpHub::close() {
  listeners_.clear();
  unauthenticated_.clear();
  known_.clear();
}

void TcpHub::progress() {
  if (has_callers()) {
    for (const Fd& listener : listeners_) accept_all(listener);
  }
  if (unauthenticated_.empty()) return;
  const auto now = Clock::now();
  std::erase_if(unauthenticated_,
                [&](UnauthenticatedPeer& peer) { return !hear(peer) || now > peer.patience_ends; });
}

// All ranks may come at once, with all their sockets; whoever is beyond that is not one of them.
std::size_t TcpHub::most_connections() const {
  return 64 + static_cast<std::size_t>(world_size_) * kMaxTcpSockets * rails_.size();
}

void TcpHub::fill(TcpAddress& address) const {
  address.magic = TcpAddress::kMagic;
  address.nonce = nonce_;
  rails_.front().address.fill(address);
  address.prefix = static_cast<std::uint16_t>(rails_.front().prefix);
  address.num_rails = static_cast<std::uint16_t>(rails_.size() - 1);
  for (std::size_t i = 0; i < address.num_rails; ++i) {
    rails_[i + 1].address.fill(address.rails[i]);
    address.rails[i].prefix = static_cast<std::uint16_t>(rails_[i + 1].prefix);
  }
}

std::chrono::milliseconds TcpHub::patience(const std::string& interface) const {
  return given_up_.contains(interface) ? kPatienceOnceGivenUp : kPatienceForPaths;
}

// accept4() makes a file before it finds that nobody calls.
bool TcpHub::has_callers() {
  polled_listeners_.clear();
  for (const Fd& listener : listeners_) polled_listeners_.push_back(wake_fd(listener.get()));
  return ::poll(polled_listeners_.data(), polled_listeners_.size(), 0) != 0;
}

void TcpHub::accept_all(const Fd& listener) {
  for (int i = 0; i < 64; ++i) {
    Fd fd(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd && lacks_descriptors(errno)) {
      throw DescriptorError(fmt::format("rank {}: tcp: no socket for a peer", rank_), errno);
    }
    if (!fd) return;  // nobody more, or a connection that ended already
    // The oldest has had the longest time to speak. A rank that is dropped so tries again.
    if (unauthenticated_.size() >= most_connections())
      unauthenticated_.erase(unauthenticated_.begin());
    unauthenticated_.push_back({std::move(fd), Clock::now() + kPatience, 0, {}});
  }
}

bool TcpHub::hear(UnauthenticatedPeer& peer) {
  char* hello = reinterpret_cast<char*>(&peer.hello);
  const ssize_t got =
      ::recv(peer.fd.get(), hello + peer.received, sizeof peer.hello - peer.received, MSG_DONTWAIT);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  if (got == 0) return false;
  peer.received += static_cast<std::size_t>(got);
  if (peer.received < sizeof peer.hello) return true;
  welcome(peer);
  return false;
}

void TcpHub::welcome(UnauthenticatedPeer& peer) {
  const TcpHello& hello = peer.hello;
  // The lower rank of a pair connects to the higher.
  const bool plausible = hello.magic == TcpHello::kMagic && hello.peer == rank_ &&
                         hello.rank >= 0 && hello.rank < rank_ &&
                         hello.socket < kMaxTcpSockets * rails_.size() &&
                         hello.socket < kMaxLinkSockets;
  if (!plausible || !same(hello.proof, hello_proof(secret_, nonce_, hello))) return;
  const std::pair key(hello.rank, static_cast<int>(hello.socket));
  // What was overheard and is said again comes too late; what is not taken yet has been given up.
  const auto known = known_.find(key);
  if (known != known_.end() && hello.incarnation <= known->second.incarnation) return;
  const TcpWelcome answer{.proof = welcome_proof(secret_, nonce_, hello)};
  if (::send(peer.fd.get(), &answer, sizeof answer, MSG_DONTWAIT | MSG_NOSIGNAL) != sizeof answer) {
    return;
  }
  known_.insert_or_assign(key, Known{std::move(peer.fd), hello.incarnation});
  // Before the next incarnation takes its place: the peer may have sent something by this one.
  const Rank rank = hello.rank;
  for (TcpLink* link : links_) link->returned(rank);
}

Fd TcpHub::take(Rank peer, int socket, std::uint32_t incarnation) {
  const auto at = known_.find({peer, socket});
  if (at == known_.end() || at->second.incarnation != incarnation) return {};
  // The place stays taken: a hello that is said again, by somebody who overheard it, comes too
  // late.
  return std::move(at->second.fd);
}

std::uint32_t TcpHub::incarnation(Rank peer, int socket) const {
  const auto at = known_.find({peer, socket});
  return at == known_.end() ? 0 : at->second.incarnation;
}

bool TcpHub::polls_each() const {
  std::size_t sockets = 0;
  for (const TcpLink* link : links_) sockets += link->num_streams();
  return sockets <= kPolledEach;
}

void TcpHub::prepare_to_sleep() {
  for (TcpLink* link : links_) link->prepare_to_sleep();
  // What is told from now on wakes.
  if (!polls_each()) readiness_.refresh();
}

void TcpHub::append_wake_fds(std::vector<pollfd>& fds) {
  for (const Fd& listener : listeners_) fds.push_back(wake_fd(listener.get()));
  for (const UnauthenticatedPeer& peer : unauthenticated_) fds.push_back(wake_fd(peer.fd.get()));
  const bool each = polls_each();
  if (!each) fds.push_back(wake_fd(readiness_.fd()));
  std::int64_t within_ns = TcpLink::kNoHurry;
  for (const TcpLink* link : links_) {
    link->append_wake_fds(fds, each);
    within_ns = std::min(within_ns, link->wants_progress_within_ns());
  }
  if (within_ns == TcpLink::kNoHurry) return;
  // Nothing tells that the peer's kernel has what was sent.
  if (!timer_) timer_ = Fd(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  itimerspec when{};
  when.it_value.tv_nsec = within_ns;
  if (::timerfd_settime(timer_.get(), 0, &when, nullptr) == 0) fds.push_back(wake_fd(timer_.get()));
}

}  // namespace chorus
