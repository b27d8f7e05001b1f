// The packings of one topology, each made once.
#pragma once

#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "chorus/topology.hpp"
#include "model/price/cost.hpp"
#include "synth/budget.hpp"
#include "synth/network.hpp"
#include "synth/packing.hpp"
#include "synth/packing/spanning.hpp"

namespace chorus::synth {

/// What trees of any collective and size need, and what depends on neither: a plan for many sizes
/// packs once. What a spent budget has cut short is made again when it is asked for again.
class Packings {
 public:
  /// `options` but for their root and trees, which are asked for.
  Packings(const Topology& topology, const PackingOptions& options);

  [[nodiscard]] const Topology& topology() const { return topology_; }
  [[nodiscard]] const Network& network(Direction direction) const {
    return direction == Direction::forward ? forward_ : reversed_;
  }
  /// With all edges: where rings are, which use few of them.
  [[nodiscard]] const Network& whole(Direction direction) const {
    return direction == Direction::forward ? whole_ : whole_reversed_;
  }
  [[nodiscard]] const Routes& routes() const { return routes_; }

  /// As pack_trees(), from `root` or all ranks, `trees` each or as many as it takes.
  [[nodiscard]] std::optional<TreePacking> trees(Direction direction, std::optional<Rank> root,
                                                 std::optional<int> trees, const Budget& budget);
  /// As pack_rings().
  [[nodiscard]] std::vector<SpanningTree> rings(Direction direction, int rings,
                                                const Budget& budget);
  /// As pack_spanning_trees().
  [[nodiscard]] std::optional<SpanningPacking> spanning(int trees, TreeShape shape,
                                                        const Budget& budget);

 private:
  const Topology topology_;
  const PackingOptions options_;
  const Network whole_, whole_reversed_;
  const Network forward_, reversed_;
  const Routes routes_;
  const bool serves_both_;  // what is packed for one direction, if it loads the other no more
  std::map<std::tuple<Direction, std::optional<Rank>, std::optional<int>>,
           std::optional<TreePacking>>
      trees_;
  std::map<std::pair<Direction, int>, std::vector<SpanningTree>> rings_;
  std::map<std::pair<int, TreeShape>, std::optional<SpanningPacking>> spanning_;
};

}  // namespace chorus::synth
