// Links far below their peers: a cable at a tenth of its rate, a host with an old adapter.
#pragma once

#include <vector>

#include "chorus/topology.hpp"

namespace chorus {

/// By link: whether it has less than half of the median rate of its peers, the links of its type
/// between nodes of the same kinds. More than a third of a family is no exception in it: then none
/// of the family is marked.
[[nodiscard]] std::vector<bool> slow_links(const Topology& topology);

}  // namespace chorus
