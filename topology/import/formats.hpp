// The readers behind topology_from_text(), one per format. What they return has not passed sound()
// yet: only topology_from_text() and the tests of each reader call them.
#pragma once

#include <string_view>

#include "chorus/topology.hpp"

namespace chorus {

/// Each throws InputError beginning with `where` and the line, and saying what to do.
[[nodiscard]] Topology topology_from_nccl_xml(std::string_view text, std::string_view where);
[[nodiscard]] Topology topology_from_hwloc_xml(std::string_view text, std::string_view where);
[[nodiscard]] Topology topology_from_nvidia_smi(std::string_view text, std::string_view where);

}  // namespace chorus
