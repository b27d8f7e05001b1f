// A host, in the Topology of a network, whose inside another Topology declares.
#pragma once

#include <vector>

#include "topology/discover/builder.hpp"
#include "topology/probing/probed_network.hpp"

namespace chorus::probing {

/// add_host() of a part with HostPart::declared: nodes, links and port groups of its inside as
/// they are there, but one adapter, with what leads to any of them, in place of all that cables
/// leave from. Returns its node.
int add_declared_host(TopologyBuilder& builder, const ProbedNetwork& network, const HostPart& part,
                      double out, double in, std::vector<int>& rank_nodes);

}  // namespace chorus::probing
