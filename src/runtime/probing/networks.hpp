// Which networks join which hosts, where a host has several cables.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "chorus/options.hpp"
#include "runtime/control/control.hpp"
#include "topology/probing/networks.hpp"
#include "transports/tcp/endpoint.hpp"

namespace chorus {

/// What tcp uses between hosts, as Connections has it.
[[nodiscard]] std::vector<Rail> tcp_interfaces(const Control& control, const Options& options);

/// What a host tells the others of its interfaces.
[[nodiscard]] std::vector<std::byte> interfaces_told(std::span<const Rail> rails);

/// Where paths between hosts lead through several networks: that of all hosts, which the first
/// addresses make, and the others in the order in which hosts tell of them. Nothing where there is
/// one, nor where addresses leave open which path is whose (two of a host in one network, one on
/// two hosts). Alike wherever `told` is, by host, which interfaces_told() made. Throws
/// BootstrapError if it did not.
[[nodiscard]] std::vector<probing::HostNetwork> networks_of(
    std::span<const std::span<const std::byte>> told);

}  // namespace chorus
