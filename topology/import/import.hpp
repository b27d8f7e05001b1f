// Topologies described in other programs' formats.
#pragma once

#include <string>
#include <string_view>

#include "chorus/topology.hpp"

namespace chorus {

/// NCCL's and hwloc's XML, the matrix of nvidia-smi and Chorus JSON, told apart by content. What
/// comes back is sound(). Throws InputError beginning with `where` and the line, and saying what to
/// do.
[[nodiscard]] Topology topology_from_text(std::string_view text, std::string_view where);
/// Throws InputError naming the path if it cannot be read or is larger than any topology.
[[nodiscard]] std::string text_of_file(const std::string& path);
[[nodiscard]] Topology topology_from_file(std::string_view path);

}  // namespace chorus
