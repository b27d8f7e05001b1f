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

Packings::Packings(const Topology& topology, bool by_prices_alone)
    : topology_(topology),
      forward_(topology, Direction::forward),
      reversed_(topology, Direction::reversed),
      routes_(topology_),
      by_prices_alone_(by_prices_alone) {}

std::optional<TreePacking> Packings::trees(Direction direction, std::optional<Rank> root,
                                           std::optional<int> trees, const Budget& budget) {
  return made_once(trees_, {direction, root, trees}, budget, [&] {
    const PackingOptions options{.root = root, .trees = trees, .by_prices_alone = by_prices_alone_};
    return pack_trees(topology_, direction, options, budget);
  });
}

std::vector<SpanningTree> Packings::rings(Direction direction, int rings, const Budget& budget) {
  return made_once(rings_, {direction, rings}, budget,
                   [&] { return pack_rings(network(direction), rings, budget); });
}

std::optional<SpanningPacking> Packings::spanning(int trees, const Budget& budget) {
  return made_once(spanning_, trees, budget,
                   [&] { return pack_spanning_trees(forward_, trees, budget); });
}

}  // namespace chorus::synth
