// From a network with switches to one of ranks alone that can carry the same trees.
#pragma once

#include <optional>
#include <vector>

#include "synth/budget.hpp"
#include "synth/packing/graph.hpp"

namespace chorus::synth {

/// How many trees each pair of terminals can carry: [i · terminals + j], in the order of
/// CapacityGraph::terminals.
using PairCapacities = std::vector<int>;

/// The trees to be packed: `supply[node]` trees start at each node, each carrying `unit_gb_s`.
struct TreeDemand {
  std::vector<int> supply;
  double unit_gb_s = 0;
};

/// Capacities in whole trees between terminals, such that an edge-disjoint packing of `demand`
/// exists (Edmonds), by splitting off the arcs at switches without harming any cut (Bang-Jensen,
/// Frank and Jackson 1995; ForestColl uses it for collectives). Nothing if the cuts do not allow
/// the demand, or the switches cannot be removed, or the budget is spent.
///
/// Where there is a choice, arcs are joined to what `routes` say data really travels.
[[nodiscard]] std::optional<PairCapacities> without_switches(const CapacityGraph& graph,
                                                             const RoutePieces& routes,
                                                             const TreeDemand& demand,
                                                             const Budget& budget);

/// True if the cuts of the capacities, in whole trees, allow `demand`. Quicker; says yes too often
/// only where switches take in more or less than they can pass on.
[[nodiscard]] bool cuts_allow(const CapacityGraph& graph, const TreeDemand& demand);

}  // namespace chorus::synth
