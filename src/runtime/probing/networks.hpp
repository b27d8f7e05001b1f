// Which networks join which hosts, where a host has several cables.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "transports/tcp/endpoint.hpp"

namespace chorus {

/// Addresses of hosts in one network.
struct HostNetwork {
  std::string name;        ///< as NetworkShare has it; empty: by their first addresses
  std::vector<int> hosts;  ///< ascending

  bool operator==(const HostNetwork&) const = default;
};

/// What a host tells the others of its interfaces.
[[nodiscard]] std::vector<std::byte> interfaces_told(std::span<const Rail> rails);

/// Where paths between hosts lead through several networks: that of all hosts, which the first
/// addresses make, and the others in the order of their names. Nothing where there is one, nor
/// where addresses leave open which path is whose (two of a host in one network, one on two hosts).
/// Alike wherever `told` is, by host, which interfaces_told() made. Throws BootstrapError if it did
/// not.
[[nodiscard]] std::vector<HostNetwork> networks_of(
    std::span<const std::span<const std::byte>> told);

}  // namespace chorus
