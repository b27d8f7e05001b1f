// The parts of discovery that tests feed with recorded machines.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "topology/discover/box.hpp"
#include "topology/discover/discovered_host.hpp"
#include "topology/discover/linux_net.hpp"
#include "topology/discover/nvml/nvml.hpp"

namespace chorus {

/// discover(), with what was found out about its GPUs given.
[[nodiscard]] Topology discover(const NvmlReport& gpus);

/// Puts the kernel's speeds and states on the box's interfaces, and adds those it lacks.
void add_interfaces(Box& box, const std::vector<NetInterface>& interfaces);

/// What `box` says, for every process on the machine of this name; `gpus` tells how its GPUs are
/// called.
[[nodiscard]] DiscoveredHost host_of(Box box, std::string machine, const NvmlReport& gpus = {});

/// A machine in hwloc's synthetic notation ("numa:2 core:4 pu:2"), named "hwloc:…".
/// Throws InputError.
[[nodiscard]] Topology topology_from_synthetic(std::string_view description);
/// The same as discover_host() would have it; its machine is called "hwloc:…".
[[nodiscard]] DiscoveredHost host_from_synthetic(std::string_view description);

}  // namespace chorus
