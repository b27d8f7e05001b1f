#include "synth/packing/packings.hpp"

#include "synth/packing/rings.hpp"

namespace chorus::synth {
namespace {

template <class Key, class Value, class Make>
Value made_once(std::map<Key, Value>& known, const Key& key, const Budget& budget, Make make) {
  if (const auto found = known.find(key); found != known.end()) return found->second;
  Value made = make();
  if (!budget.spent()) known.emplace(key, made);
  return made;
}

}  // namespace

Packings::Packings(const Topology& topology, const PackingOptions& options)
    : topology_(topology),
      options_(options),
      whole_(topology, Direction::forward),
      whole_reversed_(topology, Direction::reversed),
      forward_(thinned(whole_, options.edges_per_rank)),
      reversed_(thinned(whole_reversed_, options.edges_per_rank)),
      routes_(topology_) {}

std::optional<TreePacking> Packings::trees(Direction direction, std::optional<Rank> root,
                                           std::optional<int> trees, const Budget& budget) {
  return made_once(trees_, {direction, root, trees}, budget, [&] {
    PackingOptions options = options_;
    options.root = root;
    options.trees = trees;
    return pack_trees(topology_, direction, options, budget);
  });
}

std::vector<SpanningTree> Packings::rings(Direction direction, int rings, const Budget& budget) {
  return made_once(rings_, {direction, rings}, budget,
                   [&] { return pack_rings(whole(direction), rings, budget); });
}

std::optional<SpanningPacking> Packings::spanning(int trees, TreeShape shape,
                                                  const Budget& budget) {
  return made_once(spanning_, std::pair(trees, shape), budget,
                   [&] { return pack_spanning_trees(forward_, trees, shape, budget); });
}

}  // namespace chorus::synth
