#include "cli/doctor/paths.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "chorus/error.hpp"
#include "transports/tcp/hub.hpp"
#include "transports/tcp/link.hpp"

namespace chorus::doctor {
namespace {

/// Of a job of many hosts each is tried with so many before and behind it.
constexpr int kNeighbours = 8;
constexpr int kSockets = 2;

}  // namespace

PathCheck::PathCheck(int host, int hosts, const Secret& secret, const std::string& interfaces,
                     bool others)
    : host_(host),
      hosts_(hosts),
      config_{.region_bytes = 4096, .num_channels = 1, .max_outstanding = 2, .timeout_ms = 4000},
      hub_(std::make_shared<TcpHub>(resolve_rails(interfaces, others), secret.derive("doctor"),
                                    host, hosts)) {}

PathCheck::~PathCheck() = default;

std::vector<std::byte> PathCheck::address() const {
  TcpAddress address;
  address.host = HostIdentity::here();
  address.rank = host_;
  address.num_sockets = kSockets;
  hub_->fill(address);
  return {address.bytes().begin(), address.bytes().end()};
}

void PathCheck::connect(std::span<const std::vector<std::byte>> addresses) {
  for (int host = 0; host < hosts_; ++host) {
    const int apart = std::abs(host - host_);
    if (apart == 0 || std::min(apart, hosts_ - apart) > kNeighbours) continue;
    Peer& peer = peers_.emplace_back();
    peer.host = host;
    const auto address = TcpAddress::parse(addresses[static_cast<std::size_t>(host)]);
    if (!address || address->rank != host) {
      peer.failure = "it published no address";
      continue;
    }
    const bool same_network = HostIdentity::here().same_network(address->host);
    peer.link = std::make_unique<TcpLink>(hub_, config_, kSockets, same_network, *address);
  }
}

bool PathCheck::progress() {
  bool all = true;
  for (Peer& peer : peers_) {
    if (!peer.failure.empty()) continue;
    try {
      // The first put is taken when the link is connected, and then all paths are decided.
      static_cast<void>(peer.link->progress());
      if (!peer.connected) peer.connected = peer.link->try_put({}, 0, 0, 0);
      all = all && peer.connected;
    } catch (const LinkError& error) {
      if (!peer.connected) peer.failure = error.what();  // else it has left after all was decided
    }
  }
  return all;
}

std::vector<Finding> PathCheck::findings(std::span<const std::string> names) const {
  std::vector<Finding> found;
  const auto name = [&](int host) { return names[static_cast<std::size_t>(host)]; };
  for (const Peer& peer : peers_) {
    if (peer.connected || peer.host < host_) continue;  // the lower host connects, and tells
    found.push_back(
        {.check = "tcp",
         .severity = Severity::fault,
         .seen = fmt::format("no connection to {}: {}", name(peer.host), peer.failure),
         .why = "ranks of these hosts cannot exchange anything over TCP",
         .remedy = "check the firewall, or name the interface to use in CHORUS_SOCKET_IFNAME",
         .hosts = {}});
  }
  for (const LostPath& lost : hub_->lost()) {
    if (lost.peer < host_) continue;
    found.push_back({.check = "cable-path",
                     .severity = Severity::warning,
                     .seen = fmt::format("{} ({}) does not reach {} at {}: {}", lost.interface,
                                         lost.own, name(lost.peer), lost.peers, lost.why),
                     .why = "their addresses are on one network; every job waits a second for such "
                            "a path and then goes on without it",
                     .remedy = "check cable, switch and firewall; give separate networks separate "
                               "addresses; or name the interfaces to use in CHORUS_SOCKET_IFNAME",
                     .hosts = {}});
  }
  return found;
}

}  // namespace chorus::doctor
