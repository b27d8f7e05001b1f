// The networks between hosts that a Topology describes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "chorus/topology.hpp"
#include "topology/probing/networks.hpp"
#include "topology/probing/probed_network.hpp"

namespace chorus::probing {

/// What somebody said of hosts that several networks join, in the form in which a probe says it.
struct DeclaredNetworks {
  /// The first network that joins all hosts, and the others in the order of their switches.
  /// ProbedNetwork::name is that of a network's first switch, for lack of an address.
  ProbedNetwork network;
  std::vector<int> nodes;                ///< by host, of the topology
  std::vector<std::vector<Rank>> ranks;  ///< by host, ascending
  /// [network][ProbedNetwork::hosts of it]: the adapter of the cable, without its host's name
  /// ("eth1" of "host0/eth1"); empty where the cable leaves from the host itself.
  std::vector<std::vector<std::string>> adapters;
};

/// The networks of `topology`; nothing where hosts are joined by one, or in another way than a
/// ProbedNetwork can say: not all of them by any network, switches in rings, two cables of a host
/// into one network, cables from host to host, limits of several cables together, hosts with GPUs.
[[nodiscard]] std::optional<DeclaredNetworks> declared_networks(const Topology& topology);

/// `topology` as schedules are priced on it: two hosts that several networks join have together
/// what these carry, as a probe's Topology says it (topology_of()); all inside hosts stays. The
/// topology itself where declared_networks() is nothing.
[[nodiscard]] Topology with_joined_networks(const Topology& topology);

/// `declared`, each of its networks with the name of the one of `addressed` that joins the same
/// hosts; `hosts` says which of the declared hosts is the one of each number in `addressed`, and
/// `names` what it is called. The network of all hosts is the first of `addressed`. Of several that
/// join the same hosts one is taken whose interfaces are called like the adapters, else the first
/// that is left. Nothing where a network has no counterpart.
[[nodiscard]] std::optional<ProbedNetwork> with_addresses(
    const DeclaredNetworks& declared, const std::vector<int>& hosts,
    const std::vector<std::string>& names, const std::vector<HostNetwork>& addressed);

}  // namespace chorus::probing
