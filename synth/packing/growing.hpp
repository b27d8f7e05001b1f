// Edge-disjoint spanning trees, grown one edge at a time.
#pragma once

#include <optional>
#include <vector>

#include "synth/budget.hpp"

namespace chorus::synth {

/// `copies` equal trees: `parent[v]` is the vertex that v has its data from, -1 at the root.
struct GrownTree {
  int root = 0;
  int copies = 0;
  std::vector<int> parent;
};

/// Packs `supply[r]` spanning out-trees from each vertex r into the capacities of a graph of
/// `supply.size()` vertices; `pairs[i · n + j]` trees may use (i, j). An edge is taken only as far
/// as the cuts leave all other trees possible (Lovász's proof of Edmonds' theorem made an
/// algorithm, as Tong and Lawler and ForestColl do), so that a packing is found whenever the cuts
/// allow one. Edges near the root first: of the possible trees these are shallow ones.
///
/// Nothing if the cuts do not allow it or the budget is spent.
[[nodiscard]] std::optional<std::vector<GrownTree>> grow_trees(const std::vector<int>& pairs,
                                                               const std::vector<int>& supply,
                                                               const Budget& budget);

}  // namespace chorus::synth
