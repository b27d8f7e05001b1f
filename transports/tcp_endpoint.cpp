#include "transports/tcp_endpoint.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "base/descriptors.hpp"

namespace chorus {
namespace {

const sockaddr_in& v4(const Endpoint& endpoint) {
  return reinterpret_cast<const sockaddr_in&>(endpoint.storage);
}
sockaddr_in& v4(Endpoint& endpoint) { return reinterpret_cast<sockaddr_in&>(endpoint.storage); }
const sockaddr_in6& v6(const Endpoint& endpoint) {
  return reinterpret_cast<const sockaddr_in6&>(endpoint.storage);
}
sockaddr_in6& v6(Endpoint& endpoint) { return reinterpret_cast<sockaddr_in6&>(endpoint.storage); }

[[noreturn]] void fail(const char* what, const Endpoint& endpoint) {
  throw LinkError(fmt::format("tcp: {} {}: {}", what, endpoint.text(), std::strerror(errno)));
}

/// Usable addresses by interface, IPv4 first. Link-local IPv6 is left out: it means nothing without
/// the number of an interface, which differs from host to host.
std::map<std::string, std::vector<Endpoint>> interfaces() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) {
    if (lacks_descriptors(errno)) throw DescriptorError("tcp: cannot list the interfaces", errno);
    throw LinkError(fmt::format("tcp: cannot list the interfaces: {}", std::strerror(errno)));
  }
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);
  std::map<std::string, std::vector<Endpoint>> found;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
      if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != family) continue;
      if ((entry->ifa_flags & IFF_UP) == 0) continue;
      Endpoint endpoint;
      std::memcpy(&endpoint.storage, entry->ifa_addr,
                  family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
      if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&v6(endpoint).sin6_addr)) continue;
      found[entry->ifa_name].push_back(endpoint);
    }
  }
  return found;
}

}  // namespace

DescriptorError::DescriptorError(const std::string& what, int error)
    : LinkError(fmt::format("{}: {}", what, why_no_descriptor(error))) {}

bool Endpoint::parse(const std::string& text, Endpoint& endpoint) {
  endpoint = {};
  if (::inet_pton(AF_INET, text.c_str(), &v4(endpoint).sin_addr) == 1) {
    endpoint.storage.ss_family = AF_INET;
    return true;
  }
  if (::inet_pton(AF_INET6, text.c_str(), &v6(endpoint).sin6_addr) == 1) {
    endpoint.storage.ss_family = AF_INET6;
    return true;
  }
  return false;
}

Endpoint Endpoint::from(const TcpAddress& address) {
  Endpoint endpoint;
  if (address.version == 4) {
    endpoint.storage.ss_family = AF_INET;
    std::memcpy(&v4(endpoint).sin_addr, address.ip.data(), 4);
  } else {
    endpoint.storage.ss_family = AF_INET6;
    std::memcpy(&v6(endpoint).sin6_addr, address.ip.data(), 16);
  }
  endpoint.set_port(address.port);
  return endpoint;
}

Endpoint Endpoint::bound(int fd) {
  Endpoint endpoint;
  socklen_t size = sizeof endpoint.storage;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&endpoint.storage), &size) != 0) {
    fail("getsockname", endpoint);
  }
  return endpoint;
}

void Endpoint::fill(TcpAddress& address) const {
  address.version = family() == AF_INET ? 4 : 6;
  address.ip = {};
  if (family() == AF_INET) {
    std::memcpy(address.ip.data(), &v4(*this).sin_addr, 4);
  } else {
    std::memcpy(address.ip.data(), &v6(*this).sin6_addr, 16);
  }
  address.port = port();
}

socklen_t Endpoint::size() const {
  return family() == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
}

bool Endpoint::loopback() const {
  if (family() == AF_INET) return ntohl(v4(*this).sin_addr.s_addr) >> 24 == 127;
  return IN6_IS_ADDR_LOOPBACK(&v6(*this).sin6_addr);
}

bool Endpoint::same_ip(const Endpoint& other) const {
  if (family() != other.family()) return false;
  if (family() == AF_INET) return v4(*this).sin_addr.s_addr == v4(other).sin_addr.s_addr;
  return IN6_ARE_ADDR_EQUAL(&v6(*this).sin6_addr, &v6(other).sin6_addr);
}

std::uint16_t Endpoint::port() const {
  return ntohs(family() == AF_INET ? v4(*this).sin_port : v6(*this).sin6_port);
}

void Endpoint::set_port(std::uint16_t port) {
  (family() == AF_INET ? v4(*this).sin_port : v6(*this).sin6_port) = htons(port);
}

std::string Endpoint::ip_text() const {
  char text[INET6_ADDRSTRLEN] = "?";
  if (family() == AF_INET) {
    ::inet_ntop(AF_INET, &v4(*this).sin_addr, text, sizeof text);
  } else if (family() == AF_INET6) {
    ::inet_ntop(AF_INET6, &v6(*this).sin6_addr, text, sizeof text);
  }
  return text;
}

std::string Endpoint::text() const {
  return family() == AF_INET6 ? fmt::format("[{}]:{}", ip_text(), port())
                              : fmt::format("{}:{}", ip_text(), port());
}

Endpoint resolve_interface(const std::string& name) {
  Endpoint wanted;
  if (name.empty()) {
    Endpoint::parse("127.0.0.1", wanted);
    return wanted;
  }
  const auto found = interfaces();
  if (const auto at = found.find(name); at != found.end()) return at->second.front();
  const bool is_address = Endpoint::parse(name, wanted);
  // All of 127/8 is this machine's, though only 127.0.0.1 is listed.
  if (is_address && wanted.loopback()) return wanted;
  std::string choices;
  for (const auto& [interface, endpoints] : found) {
    std::string ips;
    for (const Endpoint& endpoint : endpoints) {
      if (is_address && endpoint.same_ip(wanted)) return wanted;
      ips += (ips.empty() ? "" : ", ") + endpoint.ip_text();
    }
    choices += fmt::format("{}{} ({})", choices.empty() ? "" : "; ", interface, ips);
  }
  throw InputError(fmt::format("interface '{}': this machine has no such {}; it has {}", name,
                               is_address ? "address" : "interface with a usable address",
                               choices));
}

Fd listen_on(const Endpoint& address) {
  Fd fd(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd && lacks_descriptors(errno)) {
    throw DescriptorError("tcp: no socket for " + address.text(), errno);
  }
  if (!fd) fail("no socket for", address);
  if (::bind(fd.get(), address.address(), address.size()) != 0) fail("cannot bind to", address);
  if (::listen(fd.get(), SOMAXCONN) != 0) fail("cannot listen on", address);
  return fd;
}

Fd start_connecting(const Endpoint& from, const Endpoint& peer) {
  Fd fd(::socket(peer.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) {
    if (lacks_descriptors(errno)) throw DescriptorError("tcp: no socket for " + peer.text(), errno);
    fail("no socket for", peer);
  }
  Endpoint source = from;
  source.set_port(0);
  const int on = 1;  // the port is chosen when the peer is known, so that ports do not run out
  ::setsockopt(fd.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
  if (::bind(fd.get(), source.address(), source.size()) != 0) fail("cannot bind to", source);
  if (::connect(fd.get(), peer.address(), peer.size()) != 0 && errno != EINPROGRESS) {
    fail("cannot connect to", peer);
  }
  return fd;
}

void tune(int fd, bool same_kernel) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  char name[16] = {};
  socklen_t size = sizeof name - 1;
  ::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &size);
  const bool paces = std::string_view(name).starts_with("bbr");
  if (same_kernel || paces) ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
}

void limit_rate(int fd, double bytes_per_s) {
  const auto rate = bytes_per_s > 0 ? static_cast<std::uint64_t>(std::max(bytes_per_s, 1.0))
                                    : std::numeric_limits<std::uint64_t>::max();
  ::setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate);
}

}  // namespace chorus
