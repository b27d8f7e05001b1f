// A Topology in text, for people.
#pragma once

#include <string>
#include <string_view>

#include "chorus/topology.hpp"

namespace chorus {

/// "gpu", "network_switch"; "declared".
[[nodiscard]] std::string_view name_of(NodeKind kind);
[[nodiscard]] std::string_view name_of(Provenance provenance);

/// The tree of nodes, the links (equal ones between the same ends in one line), the port groups.
/// Ends in a newline. Same value, same text.
[[nodiscard]] std::string describe(const Topology& topology);

}  // namespace chorus
