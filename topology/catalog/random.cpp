// Graphs drawn by a seed: for trying what no catalog has.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "topology/catalog/draw.hpp"
#include "topology/catalog/spec.hpp"
#include "topology/discover/builder.hpp"

namespace chorus {
namespace {

/// A cable of `wire` that is up to `spread` times as fast.
Wire faster(Draw& draw, Wire wire, double spread) {
  wire.gb_s *= 1 + (spread - 1) * static_cast<double>(draw.below(1000)) / 999;
  return wire;
}

struct Drawn {
  Wire wire;
  double spread = 1;
  int seed = 1;
};

Drawn drawn_of(Spec& spec, double spread) {
  return {{spec.number("rate", 1), spec.number("alpha", 1), "link", Provenance::declared},
          spec.number("spread", spread),
          spec.integer("seed", 1)};
}

}  // namespace

/// A union of random rings through all ranks: connected, and nearly as many cables at every rank.
Topology make_random(Spec& spec) {
  spec.expect_shape(1, 1, 2, "random:16");
  const Drawn drawn = drawn_of(spec, 1);
  const int degree = spec.integer("degree", 4);
  spec.expect_all_used();
  const int count = spec.shape[0];
  if (degree < 2 || long{degree} * count > kMostLinks) {
    spec.fail(spec.shape_at,
              fmt::format("degree={} must be from 2 to {}", degree, kMostLinks / count));
  }
  TopologyBuilder builder(spec.text);
  std::vector<int> order;
  for (int i = 0; i < count; ++i) {
    order.push_back(builder.node(fmt::format("node{}", i), NodeKind::host));
    builder.rank(order.back());
  }
  Draw draw(static_cast<std::uint64_t>(drawn.seed));
  std::set<std::pair<int, int>> joined;
  for (int ring = 0; ring < (degree + 1) / 2; ++ring) {
    draw.shuffle(order);
    // An odd degree ends with every second cable of a ring.
    const std::size_t stride = 2 * ring + 1 == degree ? 2 : 1;
    for (std::size_t i = 0; i < order.size(); i += stride) {
      const auto [a, b] = std::minmax(order[i], order[(i + 1) % order.size()]);
      if (a == b || !joined.insert({a, b}).second) continue;
      builder.both_ways(a, b, faster(draw, drawn.wire, drawn.spread));
    }
  }
  return builder.take();
}

/// Every switch but the first hangs at a random earlier one; every rank at a random switch, the
/// first ranks one at each.
Topology make_switch_tree(Spec& spec) {
  spec.expect_shape(1, 1, 2, "switch-tree:16");
  const Drawn drawn = drawn_of(spec, 4);
  const int count = spec.shape[0];
  const int num_switches = spec.integer("switches", count / 4 + 1);
  spec.expect_all_used();
  if (num_switches > count) {
    spec.fail(spec.shape_at,
              fmt::format("switches={} is more than the {} ranks", num_switches, count));
  }
  TopologyBuilder builder(spec.text);
  Draw draw(static_cast<std::uint64_t>(drawn.seed));
  std::vector<int> switches;
  for (int i = 0; i < num_switches; ++i) {
    const int node = builder.node(fmt::format("switch{}", i), NodeKind::network_switch);
    if (i > 0) {
      builder.both_ways(node, switches[draw.below(switches.size())],
                        faster(draw, drawn.wire, drawn.spread));
    }
    switches.push_back(node);
  }
  for (int i = 0; i < count; ++i) {
    const int node = builder.node(fmt::format("node{}", i), NodeKind::host);
    builder.rank(node);
    const std::size_t number =
        i < num_switches ? static_cast<std::size_t>(i) : draw.below(switches.size());
    builder.both_ways(node, switches[number], drawn.wire);
  }
  return builder.take();
}

}  // namespace chorus
