// Pictures of topologies, laid out by graphviz.
#pragma once

#include <string>

#include "chorus/topology.hpp"

namespace chorus {

/// Boxes within boxes for what contains what; edges as wide as they are fast, coloured by type.
/// Same value, same text. Throws InputError if there is too much to see anything.
[[nodiscard]] std::string graphviz_source(const Topology& topology);

/// Draws to a file, or to standard output for "-". Throws InputError if graphviz is not installed
/// or the file cannot be written.
void draw_svg(const Topology& topology, const std::string& path);

}  // namespace chorus
