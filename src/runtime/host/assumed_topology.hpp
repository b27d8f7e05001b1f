// What a communicator takes its wiring to be when nobody described or probed it.
#pragma once

#include <cstddef>
#include <vector>

#include "chorus/topology.hpp"
#include "runtime/engine/connections.hpp"

namespace chorus {

/// Machines that the members run on.
[[nodiscard]] std::size_t num_hosts(const std::vector<Member>& members);

/// The members' machines as they were measured and discovered (Member), each rank where it really
/// is. What lies between machines is assumed: one network.
[[nodiscard]] Topology assumed_topology(const std::vector<Member>& members,
                                        bool hosts_share_memory);

/// Where hosts are containers of one machine and ranks outnumber its cores, what a topology says of
/// cables is not all: every message takes time of cores that the hosts share. Adds a port group for
/// each such machine, over the links at its ranks' nodes.
void share_cores(Topology& topology, const std::vector<Member>& members);

/// The hierarchy that hierarchical schedules may use (AlgorithmInput::levels): hosts of equal size,
/// ranks numbered host by host, and inside them, if ranks are so numbered there, too, caches and
/// packages. Empty if the members are placed otherwise.
[[nodiscard]] std::vector<int> levels_of(const std::vector<Member>& members);

}  // namespace chorus
