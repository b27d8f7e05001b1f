#include "runtime/control/net.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <linux/tcp.h>  // <netinet/tcp.h> lacks what was acknowledged
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "base/files/fd.hpp"
#include "base/host.hpp"
#include "chorus/error.hpp"

namespace chorus::net {
namespace {

constexpr int kBacklog = 4096;
// A dead machine sends no FIN: probes after 5 s of silence, one each second so that a cable that
// comes back in time is noticed, given up after ten unanswered ones,
// or when sent bytes stay unacknowledged for 15 s.
constexpr int kKeepIdleSeconds = 5, kKeepIntervalSeconds = 1, kKeepCount = 10;
constexpr unsigned kUserTimeoutMs = 15'000;

const sockaddr_in& v4(const Endpoint& endpoint) {
  return reinterpret_cast<const sockaddr_in&>(endpoint.storage);
}
const sockaddr_in6& v6(const Endpoint& endpoint) {
  return reinterpret_cast<const sockaddr_in6&>(endpoint.storage);
}

Endpoint from(const sockaddr* address, std::uint16_t port) {
  Endpoint endpoint;
  std::memcpy(&endpoint.storage, address,
              address->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
  endpoint.set_port(port);
  return endpoint;
}

struct Interfaces {
  Interfaces() {
    ifaddrs* list = nullptr;
    if (::getifaddrs(&list) != 0) {
      throw BootstrapError(
          fmt::format("cannot list the network interfaces: {}", std::strerror(errno)));
    }
    owner.reset(list);
  }
  struct Free {
    void operator()(ifaddrs* list) const { ::freeifaddrs(list); }
  };
  std::unique_ptr<ifaddrs, Free> owner;

  template <typename Visit>  // bool(name, address): true ends the search
  bool any(Visit visit) const {
    for (const ifaddrs* entry = owner.get(); entry != nullptr; entry = entry->ifa_next) {
      if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
      if (entry->ifa_addr->sa_family != AF_INET && entry->ifa_addr->sa_family != AF_INET6) continue;
      if (visit(std::string_view(entry->ifa_name), from(entry->ifa_addr, 0))) return true;
    }
    return false;
  }
};

// Sockets to close in a forked child. Leaked on purpose: fork() may come after static destructors.
struct ForkGuard {
  std::mutex mutex;
  std::set<int> fds;
  std::atomic<int> generation = 0;

  static ForkGuard& get() {
    static ForkGuard* const guard = [] {
      auto* made = new ForkGuard;
      ::pthread_atfork([] { get().mutex.lock(); }, [] { get().mutex.unlock(); },
                       [] {
                         for (const int fd : get().fds) ::close(fd);
                         get().fds.clear();
                         ++get().generation;
                         get().mutex.unlock();
                       });
      return made;
    }();
    return *guard;
  }
};

}  // namespace

std::uint16_t Endpoint::port() const {
  return ntohs(storage.ss_family == AF_INET6 ? v6(*this).sin6_port : v4(*this).sin_port);
}

void Endpoint::set_port(std::uint16_t port) {
  if (storage.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(storage).sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in&>(storage).sin_port = htons(port);
  }
}

bool Endpoint::is_loopback() const {
  if (storage.ss_family == AF_INET6) return IN6_IS_ADDR_LOOPBACK(&v6(*this).sin6_addr) != 0;
  return (ntohl(v4(*this).sin_addr.s_addr) >> 24) == 127;
}

std::string Endpoint::host() const {
  std::array<char, NI_MAXHOST> text{};
  if (::getnameinfo(address(), size(), text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0) {
    return "?";
  }
  return text.data();
}

std::string Endpoint::text() const {
  return storage.ss_family == AF_INET6 ? fmt::format("[{}]:{}", host(), port())
                                       : fmt::format("{}:{}", host(), port());
}

bool Endpoint::parse(std::string_view host, std::uint16_t port, Endpoint& out) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  // getaddrinfo also takes shortened forms ("1" for 0.0.0.1); an id is always written in full.
  if (host.find_first_of(".:") == std::string_view::npos) return false;
  if (::getaddrinfo(std::string(host).c_str(), nullptr, &hints, &found) != 0) return false;
  out = from(found->ai_addr, port);
  ::freeaddrinfo(found);
  return true;
}

std::string Id::text() const { return fmt::format("chorus:{}:{}", endpoint.text(), secret.text()); }

Id Id::parse(std::string_view text) {
  const auto bad = [&](std::string_view why) {
    // The secret stays out of messages: what follows the last colon is not repeated.
    const std::string_view shown = text.substr(0, std::min<std::size_t>(text.rfind(':'), 80));
    return InputError(
        fmt::format("'{}{}' is not a Chorus id: {}; an id looks like chorus:127.0.0.1:4000:<32 hex "
                    "digits> or chorus:[::1]:4000:<32 hex digits>",
                    shown, shown.size() < text.size() ? ":..." : "", why));
  };
  constexpr std::string_view kPrefix = "chorus:";
  if (!text.starts_with(kPrefix)) throw bad("it does not begin with chorus:");
  std::string_view rest = text.substr(kPrefix.size());
  const std::size_t before_secret = rest.rfind(':');
  if (before_secret == std::string_view::npos) throw bad("it has no port and secret");
  const std::string_view secret = rest.substr(before_secret + 1);
  rest = rest.substr(0, before_secret);
  const std::size_t before_port = rest.rfind(':');
  if (before_port == std::string_view::npos) throw bad("it has no port");
  const std::string_view port_text = rest.substr(before_port + 1);
  std::string_view host = rest.substr(0, before_port);
  const bool brackets = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  if (brackets) host = host.substr(1, host.size() - 2);
  if (!brackets && host.find(':') != std::string_view::npos) {
    throw bad("an IPv6 address stands in brackets");
  }
  std::uint16_t port = 0;
  const auto [end, error] =
      std::from_chars(port_text.data(), port_text.data() + port_text.size(), port);
  if (error != std::errc() || end != port_text.data() + port_text.size() || port == 0) {
    throw bad("its port is not a number in [1, 65535]");
  }
  Id id;
  if (!Endpoint::parse(host, port, id.endpoint) ||
      (id.endpoint.storage.ss_family == AF_INET6) != brackets) {
    throw bad("its address is not an IPv4 or IPv6 address");
  }
  try {
    id.secret = Secret::parse(secret);
  } catch (const InputError&) {
    throw bad("its secret is not 32 hex digits");
  }
  return id;
}

Endpoint local_endpoint(std::string_view interface_name, std::uint16_t port) {
  Endpoint wanted;
  interface_name = interface_name.substr(0, interface_name.find(','));
  if (interface_name.empty()) {
    Endpoint::parse("127.0.0.1", port, wanted);
    return wanted;
  }
  const bool by_address = Endpoint::parse(interface_name, port, wanted);
  // Any address of 127.0.0.0/8 is this machine, listed or not.
  if (by_address && wanted.is_loopback()) return wanted;
  Endpoint found;
  std::set<std::string> names;
  const Interfaces interfaces;
  for (const int family : {AF_INET, AF_INET6}) {
    if (interfaces.any([&](std::string_view name, const Endpoint& endpoint) {
          names.insert(fmt::format("{} ({})", name, endpoint.host()));
          if (endpoint.storage.ss_family != family) return false;
          found = endpoint;
          return by_address ? endpoint.host() == wanted.host() : name == interface_name;
        })) {
      found.set_port(port);
      return found;
    }
  }
  throw BootstrapError(
      fmt::format("'{}' is not an interface or address of this machine; there are {}",
                  interface_name, fmt::join(names, ", ")));
}

Endpoint default_route_endpoint() {
  // Connecting a UDP socket sends nothing but chooses a route; the target is reserved for
  // documentation (RFC 5737).
  const Fd probe(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  Endpoint target;
  Endpoint::parse("192.0.2.1", 9, target);
  if (probe && ::connect(probe.get(), target.address(), target.size()) == 0) {
    Endpoint chosen = local_end(probe.get());
    chosen.set_port(0);
    return chosen;
  }
  Endpoint found;
  const Interfaces interfaces;
  for (const int family : {AF_INET, AF_INET6}) {
    if (interfaces.any([&](std::string_view, const Endpoint& endpoint) {
          found = endpoint;
          return endpoint.storage.ss_family == family && !endpoint.is_loopback();
        })) {
      return found;
    }
  }
  return local_endpoint("", 0);
}

Endpoint resolve(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_ADDRCONFIG;
  addrinfo* found = nullptr;
  // A bare system may lack the file that gives this name its address, which is fixed (RFC 6761).
  const char* const name = host == "localhost" ? "127.0.0.1" : host.c_str();
  const int error = ::getaddrinfo(name, nullptr, &hints, &found);
  if (error != 0) {
    throw BootstrapError(
        fmt::format("cannot find the address of host '{}': {}", host, ::gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  // IPv4 first where there are both, so that all ranks choose alike.
  const addrinfo* best = found;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    if (entry->ai_family == AF_INET) {
      best = entry;
      break;
    }
  }
  return from(best->ai_addr, port);
}

Socket listen_on(const Endpoint& endpoint) {
  Socket fd(::socket(endpoint.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  if (fd) {
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (endpoint.storage.ss_family == AF_INET6) {
      ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    }
  }
  if (!fd || ::bind(fd.get(), endpoint.address(), endpoint.size()) != 0 ||
      ::listen(fd.get(), kBacklog) != 0) {
    throw BootstrapError(
        fmt::format("cannot listen on {}: {}", endpoint.text(), std::strerror(errno)));
  }
  return fd;
}

Endpoint local_end(int fd) {
  Endpoint endpoint;
  socklen_t size = sizeof endpoint.storage;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&endpoint.storage), &size);
  return endpoint;
}

void tune(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &kKeepIdleSeconds, sizeof kKeepIdleSeconds);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &kKeepIntervalSeconds, sizeof kKeepIntervalSeconds);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &kKeepCount, sizeof kKeepCount);
  ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &kUserTimeoutMs, sizeof kUserTimeoutMs);
}

std::uint64_t acknowledged(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size);
  return info.tcpi_bytes_acked;
}

Socket::Socket(int fd) : fd_(fd) {
  if (fd_ < 0) return;
  ForkGuard& guard = ForkGuard::get();
  const std::lock_guard lock(guard.mutex);
  guard.fds.insert(fd_);
}

Socket::~Socket() {
  if (fd_ < 0) return;
  ForkGuard& guard = ForkGuard::get();
  const std::lock_guard lock(guard.mutex);
  // In a forked child it has been closed already, and its number may be somebody else's now.
  if (guard.fds.erase(fd_) == 1) ::close(fd_);
}

int fork_generation() { return ForkGuard::get().generation.load(std::memory_order_relaxed); }

namespace {

/// "R", "T", "Z", ... as the kernel says; 0 if there is no such process; nothing if it cannot be
/// seen from here.
std::optional<char> process_state(const std::string& identity) {
  if (!sees_processes_of(identity)) return std::nullopt;
  const std::size_t slash = identity.rfind('/') + 1;
  std::ifstream status(fmt::format("/proc/{}/stat", identity.substr(slash)));
  std::string line;
  std::getline(status, line);
  // "12 (a name) T ...": the name may hold anything.
  const std::size_t end = line.rfind(") ");
  return end == std::string::npos ? '\0' : line[end + 2];
}

}  // namespace

bool sees_processes_of(const std::string& identity) {
  // But for the pid identities of one pid namespace are alike.
  const std::string own = process_identity();
  const std::size_t slash = own.rfind('/') + 1;
  return identity.substr(0, slash) == own.substr(0, slash);
}

bool is_stopped(const std::string& identity) {
  const auto state = process_state(identity);
  return state == 'T' || state == 't';
}

std::optional<bool> is_running(const std::string& identity) {
  const auto state = process_state(identity);
  if (!state) return std::nullopt;
  return *state != '\0' && *state != 'Z' && *state != 'X';  // ended, though nobody has looked yet
}

std::string process_identity() {
  std::string boot = boot_id();
  if (boot.empty()) boot = host_name();
  std::array<char, 64> pid_namespace{};
  if (::readlink("/proc/self/ns/pid", pid_namespace.data(), pid_namespace.size() - 1) < 0) {
    pid_namespace[0] = '\0';
  }
  return fmt::format("{}/{}/{}", boot, pid_namespace.data(), ::getpid());
}

}  // namespace chorus::net
