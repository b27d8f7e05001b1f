// hwloc, asked about this machine or a synthetic one.
#pragma once

#include <string>

#include "topology/discover/hw_tree.hpp"

namespace chorus {

/// `is_here` tells whether it is this machine that hwloc described, and not a file that its
/// environment variables name. Throws TopologyError.
[[nodiscard]] HwMachine hwloc_machine(std::string name, bool& is_here);

/// The same machine as hwloc's XML (version 2). Throws TopologyError.
[[nodiscard]] std::string hwloc_xml();

/// Throws InputError if hwloc does not understand `description`.
[[nodiscard]] HwMachine hwloc_synthetic(const std::string& description, std::string name);

}  // namespace chorus
