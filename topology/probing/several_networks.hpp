// The Topology of hosts that several networks join, not all of them each.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "topology/discover/builder.hpp"
#include "topology/probing/probed_network.hpp"

namespace chorus::probing {

/// topology_of() where there are further networks; of few hosts that is topology_of_pairs(), and
/// this is of the others:
///
/// Between two hosts bytes go by all networks that join them, divided as divide() says; a schedule
/// knows one route of a pair. So each set of networks that joins some pair has a tree of switches
/// of its own, with the rates of its networks together. Transfers confined to few networks cannot
/// take what only others carry: the cables (trunks) of the trees of all sets within a union of sets
/// carry no more than the networks of that union do. That every pair can be divided so that these
/// limits are met is not certain.
[[nodiscard]] Topology topology_of_several(const ProbedNetwork& network,
                                           std::span<const HostPart> parts);

/// What such a Topology is called.
[[nodiscard]] std::string title_of(const ProbedNetwork& network, std::size_t hosts);

/// What carries so much, by what `network` is known from.
[[nodiscard]] Wire wire_of(const ProbedNetwork& network, double bytes_per_s, double alpha_s,
                           std::string_view type);

/// Ranks, memory and adapter of one host of `network`, whose cables carry so many bytes per second,
/// as job_topology() has them; returns the adapter's node.
int add_host(TopologyBuilder& builder, const ProbedNetwork& network, const HostPart& part,
             double out, double in, std::vector<int>& rank_nodes);

/// The part of the latency between hosts that is this one's cable's: the hop between rank and host
/// is part of what was measured.
[[nodiscard]] double cable_alpha_s(const ProbedNetwork& network, const HostPart& part);

}  // namespace chorus::probing
