// A Topology within another file's JSON.
#pragma once

#include <string>
#include <string_view>

#include "chorus/topology.hpp"
#include "model/json/reader.hpp"

namespace chorus {

/// The members of a topology, those of the file around it left to the caller: "name", "nodes",
/// "links", "port_groups" and "ranks", indented, each on a line.
[[nodiscard]] std::string topology_members(const Topology& topology, int indent);

/// An object of just these. `where`: the file and the path in it. Throws InputError.
[[nodiscard]] Topology topology_from_members(const json::Node& node, std::string_view where);

}  // namespace chorus
