// Topologies described in other programs' formats.
#pragma once

#include <string>
#include <string_view>

#include "chorus/topology.hpp"

namespace chorus {

/// Each throws InputError beginning with `where` and the line, and saying what to do.
[[nodiscard]] Topology topology_from_nccl_xml(std::string_view text, std::string_view where);
[[nodiscard]] Topology topology_from_hwloc_xml(std::string_view text, std::string_view where);
[[nodiscard]] Topology topology_from_nvidia_smi(std::string_view text, std::string_view where);

/// Any of the above, Chorus JSON included, told apart by content.
[[nodiscard]] Topology topology_from_text(std::string_view text, std::string_view where);
/// Throws InputError naming the path if it cannot be read or is larger than any topology.
[[nodiscard]] std::string text_of_file(const std::string& path);
[[nodiscard]] Topology topology_from_file(std::string_view path);

}  // namespace chorus
