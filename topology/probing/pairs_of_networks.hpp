// The Topology of few hosts that several networks join, pair by pair.
#pragma once

#include <cstddef>
#include <span>

#include "topology/probing/probed_network.hpp"

namespace chorus::probing {

/// Of more hosts pairs are too many for the synthesizer to be quick.
inline constexpr std::size_t kMostHostsInPairs = 16;

/// topology_of() where there are further networks and no more hosts than that.
///
/// What a host sends by one network the other has to get by the same one. So two hosts may reach
/// less than what the one can send and the other can get, and several pairs less than each of them;
/// trees of switches, as topology_of_several() makes them of more hosts, cannot say so. Here a link
/// joins each host to each other, with the rate of all networks between the two, and groups of
/// links say what is carried more slowly together: from one host to several, to one from several,
/// and across a trunk, of all pairs or of those that few networks join. A group carries the sum of
/// what each network does (maximum flow).
///
/// No division among the networks can carry more than that, and of drawn clusters and demands the
/// best one carries as much within 5 % in 19 of 20 cases.
[[nodiscard]] Topology topology_of_pairs(const ProbedNetwork& network,
                                         std::span<const HostPart> parts);

}  // namespace chorus::probing
