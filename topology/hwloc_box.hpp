// A machine as hwloc sees it. No hwloc type leaves this header's source file but the handle.
#pragma once

#include <hwloc.h>

#include <memory>
#include <string>

#include "topology/box.hpp"

namespace chorus {

struct HwlocDestroy {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};
using HwlocHandle = std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, HwlocDestroy>;

/// An empty topology that will keep the I/O devices Chorus cares about. Throws TopologyError.
[[nodiscard]] HwlocHandle hwloc_empty();

/// Packages, NUMA nodes with their cores, the PCIe tree with GPUs and NICs, and the links between
/// GPUs that hwloc lists as distances. Interfaces carry names and no speeds.
[[nodiscard]] Box box_of(hwloc_topology_t topology, std::string name);

}  // namespace chorus
