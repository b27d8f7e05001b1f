// Few streams across a trunk: of the hosts behind each switch some speak for all.
#pragma once

#include <optional>
#include <vector>

#include "chorus/topology.hpp"
#include "synth/budget.hpp"
#include "synth/network.hpp"
#include "synth/plan.hpp"

namespace chorus::synth {

/// A wiring in which only some ranks speak to other islands, an island being the ranks that enter
/// the network by one switch: between two of them, neighbours (no third island's switch on the
/// way), as few pairs of ranks are left as fill what joins them, and none between others.
///
/// Streams of TCP that meet in one queue share it neither evenly nor without loss, and a chunk that
/// comes late holds up what waits behind it: eight hosts in three islands behind trunks of 200 Mb/s
/// gathered at 73 to 79 % of the bound with seven streams across a trunk and at 95 % with one,
/// predicted alike.
///
/// Nothing where that leaves all edges, where some rank enters the network by several switches, or
/// where ranks could no longer reach each other.
struct Gatewayed {
  Network network;    ///< the edges that are left
  Topology topology;  ///< with a link from gateway to gateway in place of those between switches
};
[[nodiscard]] std::optional<Gatewayed> through_gateways(const Topology& topology,
                                                        const Network& network);

/// Trees and routed exchanges on through_gateways(), "gateways".
[[nodiscard]] std::vector<Schedule> gateways(const Task& task, const Budget& budget);

}  // namespace chorus::synth
