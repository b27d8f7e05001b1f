// A topology as flows see it: nodes, and arcs with capacities.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_set>
#include <vector>

#include "chorus/topology.hpp"
#include "model/price/cost.hpp"
#include "synth/network.hpp"

namespace chorus::synth {

/// Nodes of the topology's Ways and, behind them, one for every port group that is a star: links
/// that leave one node, or enter one, pass an extra arc of the group's capacity on their common
/// side.
struct CapacityGraph {
  struct Arc {
    int src = 0;
    int dst = 0;
    double gb_s = 0;         ///< infinite where the topology gives no limit
    std::vector<int> links;  ///< the link that it stands for; none for a port group
  };

  CapacityGraph(const Topology& topology, Direction direction);

  [[nodiscard]] bool is_terminal(int node) const {
    return !ranks_on[static_cast<std::size_t>(node)].empty();
  }

  int num_nodes = 0;
  std::vector<Arc> arcs;
  std::vector<std::vector<Rank>> ranks_on;  ///< by node, ascending
  std::vector<int> terminals;               ///< nodes with ranks, ascending
  std::vector<int> node_of;                 ///< by rank
  /// False if some port group that can limit is no star: then capacities are too high in places.
  bool faithful = true;

 private:
  void add_groups(const Topology& topology);
  void add_star(const std::vector<int>& links, bool leaving, double gb_s);
};

/// The contiguous pieces of all routes: how data really travels from rank to rank.
class RoutePieces {
 public:
  RoutePieces(const Topology& topology, const Routes& routes, Direction direction);
  [[nodiscard]] bool contain(const std::vector<int>& first, const std::vector<int>& second) const;

 private:
  std::unordered_set<std::uint64_t> hashes_;
};

/// The largest x at which every node can spread weight·x to all terminals at once by the cuts of
/// the capacities, in GB/s (Edmonds 1973). `weights`: by node. An upper limit where switches take
/// in more or less than they can pass on, exact elsewhere. Infinite for one terminal.
[[nodiscard]] double cut_rate(const CapacityGraph& graph, const std::vector<int>& weights);

}  // namespace chorus::synth
