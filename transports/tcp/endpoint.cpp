#include "transports/tcp/endpoint.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/files/descriptors.hpp"

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

std::span<const std::uint8_t> ip_bytes(const Endpoint& endpoint) {
  if (endpoint.family() == AF_INET) {
    return {reinterpret_cast<const std::uint8_t*>(&v4(endpoint).sin_addr), 4};
  }
  return {reinterpret_cast<const std::uint8_t*>(&v6(endpoint).sin6_addr), 16};
}

std::span<std::uint8_t> ip_bytes(Endpoint& endpoint) {
  const std::span<const std::uint8_t> bytes = ip_bytes(std::as_const(endpoint));
  return {const_cast<std::uint8_t*>(bytes.data()), bytes.size()};
}

int prefix_of(const sockaddr* netmask, int family) {
  if (netmask == nullptr) return 0;
  Endpoint mask;
  std::memcpy(&mask.storage, netmask,
              family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
  mask.storage.ss_family = static_cast<sa_family_t>(family);
  int bits = 0;
  for (const std::uint8_t byte : ip_bytes(mask)) bits += std::popcount(byte);
  return bits;
}

struct Interface {
  std::vector<Rail> rails;  // one per address, IPv4 first
  bool loopback = false;
  bool running = false;  // it has a carrier
};

/// Usable addresses by interface. Link-local IPv6 is left out: it means nothing without the number
/// of an interface, which differs from host to host.
std::map<std::string, Interface> interfaces() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) {
    if (lacks_descriptors(errno)) throw DescriptorError("tcp: cannot list the interfaces", errno);
    throw LinkError(fmt::format("tcp: cannot list the interfaces: {}", std::strerror(errno)));
  }
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);
  std::map<std::string, Interface> found;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
      if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != family) continue;
      if ((entry->ifa_flags & IFF_UP) == 0) continue;
      Rail rail{.interface = entry->ifa_name, .address = {}};
      std::memcpy(&rail.address.storage, entry->ifa_addr,
                  family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
      if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&v6(rail.address).sin6_addr)) continue;
      rail.prefix = prefix_of(entry->ifa_netmask, family);
      Interface& interface = found[entry->ifa_name];
      interface.loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
      interface.running = (entry->ifa_flags & IFF_RUNNING) != 0;
      interface.rails.push_back(std::move(rail));
    }
  }
  return found;
}

std::string kernel_file(const std::string& interface, const char* name) {
  return fmt::format("/sys/class/net/{}/{}", interface, name);
}

bool kernel_has(const std::string& interface, const char* name) {
  return ::access(kernel_file(interface, name).c_str(), F_OK) == 0;
}

/// Whether what is sent through `interface` leaves by an adapter: not to the guests of this host,
/// nor wrapped and sent through another interface.
bool ends_at_an_adapter(const std::string& interface) {
  if (kernel_has(interface, "bridge") || kernel_has(interface, "tun_flags")) return false;
  std::ifstream type_file(kernel_file(interface, "type"));
  int type = ARPHRD_ETHER;
  type_file >> type;
  if (type != ARPHRD_ETHER && type != ARPHRD_INFINIBAND) return false;
  std::ifstream event(kernel_file(interface, "uevent"));
  for (std::string line; std::getline(event, line);) {
    for (const char* wrapped : {"vxlan", "geneve", "wireguard", "bareudp", "macsec"}) {
      if (line == fmt::format("DEVTYPE={}", wrapped)) return false;
    }
  }
  return true;
}

/// The interfaces at the bottom of `interface`: of a VLAN or a bond those that it sends through.
std::set<std::string> cables_of(const std::string& interface, int depth = 0) {
  std::set<std::string> cables;
  std::error_code ignored;
  for (const auto& entry :
       std::filesystem::directory_iterator(kernel_file(interface, ""), ignored)) {
    constexpr std::string_view kLower = "lower_";
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kLower) || depth == 8) continue;
    cables.merge(cables_of(name.substr(kLower.size()), depth + 1));
  }
  if (cables.empty()) cables.insert(interface);
  return cables;
}

/// The address of `interface` that peers in its network can reach; null if it has none.
const Rail* reachable_address(const Interface& interface) {
  for (const Rail& rail : interface.rails) {
    const bool v4_address = rail.address.family() == AF_INET;
    const auto ip = ip_bytes(rail.address);
    const bool link_local = v4_address && ip[0] == 169 && ip[1] == 254;
    if (!link_local && rail.prefix < (v4_address ? 32 : 128)) return &rail;
  }
  return nullptr;
}

void add_others(const std::map<std::string, Interface>& found, std::vector<Rail>& rails) {
  std::set<std::string> used = cables_of(rails.front().interface);
  for (const auto& [name, interface] : found) {
    if (rails.size() == kMaxTcpRails) return;
    const Rail* const rail = reachable_address(interface);
    if (rail == nullptr || interface.loopback || !interface.running) continue;
    if (!ends_at_an_adapter(name)) continue;
    std::set<std::string> cables = cables_of(name);
    const bool known = std::any_of(cables.begin(), cables.end(),
                                   [&](const std::string& cable) { return used.contains(cable); });
    if (known) continue;
    used.merge(cables);
    rails.push_back(*rail);
  }
}

Rail resolve_one(const std::string& name, const std::map<std::string, Interface>& found) {
  if (const auto at = found.find(name); at != found.end()) return at->second.rails.front();
  Endpoint wanted;
  const bool is_address = Endpoint::parse(name, wanted);
  std::string choices;
  for (const auto& [interface, all] : found) {
    std::string ips;
    for (const Rail& rail : all.rails) {
      if (is_address && rail.address.same_ip(wanted)) return rail;
      ips += (ips.empty() ? "" : ", ") + rail.address.ip_text();
    }
    choices += fmt::format("{}{} ({})", choices.empty() ? "" : "; ", interface, ips);
  }
  // All of 127/8 is this machine's, though only 127.0.0.1 is listed.
  if (is_address && wanted.loopback()) return {.interface = {}, .address = wanted, .prefix = 8};
  throw InputError(fmt::format("interface '{}': this machine has no such {}; it has {}", name,
                               is_address ? "address" : "interface with a usable address",
                               choices));
}

/// The names between commas; one empty one if there is none.
std::vector<std::string> names_in(const std::string& list) {
  std::vector<std::string> names;
  for (std::size_t from = 0; from < list.size();) {
    const std::size_t to = std::min(list.find(',', from), list.size());
    if (to > from) names.push_back(list.substr(from, to - from));
    from = to + 1;
  }
  if (names.empty()) names.emplace_back();
  return names;
}

void bind_to(int fd, const std::string& interface) {
  if (interface.empty()) return;
  // Linux 5.7 allows it to anybody. Without it routes decide, which send what goes to two
  // interfaces of one network through the first of them.
  ::setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, interface.c_str(),
               static_cast<socklen_t>(interface.size() + 1));
}

void use_reno(int fd) { ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4); }

// Before the socket connects, or listens: once BBR has run on a connection, the kernel paces it
// whatever takes its place, at first by the round trips of busier days.
void replace_bbr(int fd) {
  char name[16] = {};
  socklen_t size = sizeof name - 1;
  ::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &size);
  if (std::string_view(name).starts_with("bbr")) use_reno(fd);
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

Endpoint Endpoint::from(const TcpRail& rail) {
  TcpAddress address;
  address.ip = rail.ip;
  address.port = rail.port;
  address.version = rail.version;
  return from(address);
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

void Endpoint::fill(TcpRail& rail) const {
  TcpAddress address;
  fill(address);
  rail.ip = address.ip;
  rail.port = address.port;
  rail.version = address.version;
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

bool Endpoint::same_network(const Endpoint& other, int prefix) const {
  if (family() != other.family()) return false;
  const auto mine = ip_bytes(*this);
  const auto theirs = ip_bytes(other);
  int left = prefix;
  for (std::size_t i = 0; i < mine.size() && left > 0; ++i, left -= 8) {
    const int ignored = std::max(0, 8 - left);
    if ((mine[i] ^ theirs[i]) >> ignored != 0) return false;
  }
  return true;
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

std::string Rail::network() const {
  Endpoint network = address;
  int left = prefix;
  for (std::uint8_t& byte : ip_bytes(network)) {
    const int kept = std::clamp(left, 0, 8);
    byte = static_cast<std::uint8_t>(byte & (0xff00 >> kept));
    left -= 8;
  }
  return fmt::format("{}/{}", network.ip_text(), prefix);
}

std::vector<Rail> resolve_rails(const std::string& names, bool others) {
  std::vector<Rail> rails;
  std::map<std::string, Interface> found;
  for (const std::string& name : names_in(names)) {
    if (name.empty()) {
      rails.push_back({.interface = {}, .address = {}, .prefix = 8});
      Endpoint::parse("127.0.0.1", rails.back().address);
      return rails;
    }
    if (found.empty()) found = interfaces();
    Rail rail = resolve_one(name, found);
    const bool named_twice = std::any_of(rails.begin(), rails.end(), [&](const Rail& other) {
      return other.address.same_ip(rail.address);
    });
    if (!named_twice) rails.push_back(std::move(rail));
  }
  if (rails.size() > kMaxTcpRails) {
    throw InputError(
        fmt::format("interfaces '{}': {} of them; at most {} are used beside each other", names,
                    rails.size(), kMaxTcpRails));
  }
  if (others && !rails.front().address.loopback()) add_others(found, rails);
  return rails;
}

Endpoint resolve_interface(const std::string& names) {
  return resolve_rails(names_in(names).front(), false).front().address;
}

Fd listen_on(const Endpoint& address, const std::string& interface) {
  Fd fd(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd && lacks_descriptors(errno)) {
    throw DescriptorError("tcp: no socket for " + address.text(), errno);
  }
  if (!fd) fail("no socket for", address);
  replace_bbr(fd.get());
  bind_to(fd.get(), interface);
  if (::bind(fd.get(), address.address(), address.size()) != 0) fail("cannot bind to", address);
  if (::listen(fd.get(), SOMAXCONN) != 0) fail("cannot listen on", address);
  return fd;
}

Fd start_connecting(const Endpoint& from, const Endpoint& peer, const std::string& interface) {
  Fd fd(::socket(peer.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) {
    if (lacks_descriptors(errno)) throw DescriptorError("tcp: no socket for " + peer.text(), errno);
    fail("no socket for", peer);
  }
  replace_bbr(fd.get());
  bind_to(fd.get(), interface);
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
  if (same_kernel) use_reno(fd);
}

void limit_rate(int fd, double bytes_per_s) {
  const auto rate = bytes_per_s > 0 ? static_cast<std::uint64_t>(std::max(bytes_per_s, 1.0))
                                    : std::numeric_limits<std::uint64_t>::max();
  ::setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate);
}

void limit_unsent(int fd, int bytes) {
  ::setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, sizeof bytes);
}

std::optional<StreamProgress> progress_of(int fd) {
  // The C library's tcp_info ends before these members of the kernel's, which has never moved one.
  std::array<std::uint64_t, 29> info{};
  constexpr std::size_t kBytesAcked = 120 / 8, kDeliveryRate = 160 / 8;
  socklen_t size = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, info.data(), &size) != 0) return std::nullopt;
  if (size < (kDeliveryRate + 1) * sizeof info[0]) return std::nullopt;
  // Of the first bytes the fourth is tcpi_probes, and the lowest bit of the eighth
  // tcpi_delivery_rate_app_limited. An unanswered probe or two may be on their way.
  const auto word = [&](std::size_t offset) {
    return static_cast<std::uint32_t>(info[offset / 8] >> (offset % 8 * 8));
  };
  constexpr std::size_t kUnacked = 24, kRtt = 68, kRttVariance = 72;  // microseconds
  constexpr std::size_t kPacket = 16, kNotSent = 144, kSendWindow = 228;
  constexpr std::uint64_t kManyProbes = 3;
  // Without a route, as while its interface is down, nothing is on its way though the peer has room
  // for a packet. (Kernels before 5.4 do not tell how much room: their probes alone show it.)
  const bool cannot_send = word(kNotSent) > 0 && word(kSendWindow) > word(kPacket);
  // Where the first packet was lost no round trip was measured, and the variance is a guess.
  const std::int64_t round_trip_us = word(kRtt);
  const std::int64_t variance_us = round_trip_us > 0 ? word(kRttVariance) : 0;
  return StreamProgress{.acknowledged_bytes = info[kBytesAcked],
                        .last_bytes_per_s = info[kDeliveryRate],
                        .had_enough_to_send = (info[0] >> 56 & 1) == 0,
                        .awaits_acknowledgement = word(kUnacked) > 0 || cannot_send ||
                                                  (info[0] >> 24 & 0xff) >= kManyProbes,
                        .patience_ns = 1000 * (2 * round_trip_us + 4 * variance_us)};
}

std::optional<std::size_t> unacknowledged(int fd) {
  int bytes = 0;
  if (::ioctl(fd, SIOCOUTQ, &bytes) != 0 || bytes < 0) return std::nullopt;
  return static_cast<std::size_t>(bytes);
}

void acknowledge_at_once(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof on);
}

void close_at_once(int fd) {
  const linger none{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
}

}  // namespace chorus
