#include "synth/packing/packings.hpp"

#include "base/index.hpp"
#include "synth/packing/rerouting.hpp"
#include "synth/packing/rings.hpp"
#include "synth/plan.hpp"

namespace chorus::synth {
namespace {

template <class Key, class Value, class Make>
Value made_once(std::map<Key, Value>& known, const Key& key, const Budget& budget, Make make) {
  if (const auto found = known.find(key); found != known.end()) return found->second;
  Value made = make();
  if (!budget.spent()) known.emplace(key, made);
  return made;
}

constexpr double kAsLittle = 1.002;  // times the load
// Ranks: trees of fewer are packed in no time, and others for the other direction may be better
// (by 3 % at 1 MiB, two p3dn with three DGX A100).
constexpr int kMostPackedAnew = 128;

Direction turned(Direction direction) {
  return direction == Direction::forward ? Direction::reversed : Direction::forward;
}

/// Trees of `there` that load `here` no more. Between the same ranks data may go one way there and
/// another one back, even where all cables are the same both ways.
bool serve(const std::vector<SpanningTree>& trees, const Network& there, const Network& here) {
  if (trees.empty()) return true;  // nor are there any here
  for (const SpanningTree& tree : trees) {
    for (Rank rank = 0; rank < here.world_size(); ++rank) {
      const Rank parent = tree.parent[at(rank)];
      if (parent >= 0 && !here.edge(parent, rank)) return false;
    }
  }
  return worst_load(placed(here, trees)) <= kAsLittle * worst_load(placed(there, trees));
}

}  // namespace

Packings::Packings(const Topology& topology, const PackingOptions& options)
    : topology_(topology),
      options_(options),
      whole_(topology, Direction::forward),
      whole_reversed_(topology, Direction::reversed),
      forward_(thinned(whole_, options.edges_per_rank)),
      reversed_(thinned(whole_reversed_, options.edges_per_rank)),
      routes_(topology_),
      serves_both_(topology.world_size() > kMostPackedAnew && symmetric(topology_)) {}

std::optional<TreePacking> Packings::trees(Direction direction, std::optional<Rank> root,
                                           std::optional<int> trees, const Budget& budget) {
  return made_once(trees_, {direction, root, trees}, budget, [&] {
    const auto known = trees_.find({turned(direction), root, trees});
    if (serves_both_ && known != trees_.end() && known->second &&
        serve(known->second->trees, network(turned(direction)), network(direction))) {
      return known->second;
    }
    PackingOptions options = options_;
    options.root = root;
    options.trees = trees;
    return pack_trees(topology_, direction, options, budget);
  });
}

std::vector<SpanningTree> Packings::rings(Direction direction, int rings, const Budget& budget) {
  return made_once(rings_, {direction, rings}, budget, [&] {
    const auto known = rings_.find({turned(direction), rings});
    if (serves_both_ && known != rings_.end() &&
        serve(known->second, whole(turned(direction)), whole(direction))) {
      return known->second;
    }
    return pack_rings(whole(direction), rings, budget);
  });
}

std::optional<SpanningPacking> Packings::spanning(int trees, TreeShape shape,
                                                  const Budget& budget) {
  return made_once(spanning_, std::pair(trees, shape), budget,
                   [&] { return pack_spanning_trees(forward_, trees, shape, budget); });
}

}  // namespace chorus::synth
