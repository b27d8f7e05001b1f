// Regular graphs from a few numbers: rings, grids, hypercubes, switched networks.
#include <fmt/format.h>

#include <array>

#include "topology/catalog/spec.hpp"
#include "topology/discover/builder.hpp"

namespace chorus {
namespace {

/// 1 GB/s and 1 µs per link unless the options say otherwise, as declared by whoever typed it.
Wire wire_of(Spec& spec) {
  return {spec.number("rate", 1), spec.number("alpha", 1), "link", Provenance::declared};
}

long product(std::span<const int> extents) {
  long total = 1;
  for (const int extent : extents) {
    total *= extent;
    if (total > kMostRanks) return kMostRanks + 1;
  }
  return total;
}

void expect_size(const Spec& spec, long ranks, long links) {
  if (ranks > kMostRanks || links > kMostLinks) {
    spec.fail(spec.shape_at,
              fmt::format("larger than {} ranks or {} links", kMostRanks, kMostLinks));
  }
}

std::vector<int> add_ranks(TopologyBuilder& builder, long count) {
  std::vector<int> nodes;
  for (long i = 0; i < count; ++i) {
    nodes.push_back(builder.node(fmt::format("node{}", i), NodeKind::host));
    builder.rank(nodes.back());
  }
  return nodes;
}

/// An n-dimensional grid, the last extent varying fastest; `wrap` closes each dimension.
Topology grid(Spec& spec, bool wrap) {
  const Wire wire = wire_of(spec);
  spec.expect_all_used();
  const long count = product(spec.shape);
  expect_size(spec, count, count * 2 * static_cast<long>(spec.shape.size()));
  TopologyBuilder builder(spec.text);
  const std::vector<int> nodes = add_ranks(builder, count);
  long stride = count;
  for (const int extent : spec.shape) {
    stride /= extent;
    for (long i = 0; i < count; ++i) {
      const long place = i / stride % extent;
      if (place + 1 < extent) {
        builder.both_ways(nodes[i], nodes[i + stride], wire);
      } else if (wrap && extent > 2) {  // with two, the wrapped link would be the same cable
        builder.both_ways(nodes[i], nodes[i - place * stride], wire);
      }
    }
  }
  return builder.take();
}

Topology ring(Spec& spec) {
  spec.expect_shape(1, 1, 1, "ring:8");
  return grid(spec, true);
}

Topology mesh(Spec& spec) {
  spec.expect_shape(1, 4, 1, "mesh:4x4");
  return grid(spec, false);
}

Topology torus(Spec& spec) {
  spec.expect_shape(1, 4, 1, "torus:4x4x4");
  return grid(spec, true);
}

Topology hypercube(Spec& spec) {
  spec.expect_shape(1, 1, 0, "hypercube:4, which has 2⁴ ranks");
  if (spec.shape[0] > 14) spec.fail(spec.shape_at, "more than 14 dimensions");
  const Wire wire = wire_of(spec);
  spec.expect_all_used();
  const int count = 1 << spec.shape[0];
  TopologyBuilder builder(spec.text);
  const std::vector<int> nodes = add_ranks(builder, count);
  for (int bit = 1; bit < count; bit *= 2) {
    for (int i = 0; i < count; ++i) {
      if ((i & bit) == 0) builder.both_ways(nodes[i], nodes[i | bit], wire);
    }
  }
  return builder.take();
}

Topology full_mesh(Spec& spec) {
  spec.expect_shape(1, 1, 1, "full-mesh:8");
  const Wire wire = wire_of(spec);
  spec.expect_all_used();
  const long count = spec.shape[0];
  expect_size(spec, count, count * (count - 1));
  TopologyBuilder builder(spec.text);
  const std::vector<int> nodes = add_ranks(builder, count);
  for (long i = 0; i < count; ++i) {
    for (long j = i + 1; j < count; ++j) builder.both_ways(nodes[i], nodes[j], wire);
  }
  return builder.take();
}

/// Switches in levels, the ranks below the lowest. Each switch has `over` times the capacity
/// downwards that it has upwards; the trunk to the level above is one link of that capacity.
class FatTree {
 public:
  FatTree(Spec& spec, Wire wire, double over)
      : spec_(spec), builder_(spec.text), wire_(wire), over_(over) {}

  Topology build() {
    const char* name = spec_.shape.size() == 1 ? "switch" : "core";
    const int root = builder_.node(name, NodeKind::network_switch);
    fill(root, 0, "");
    return builder_.take();
  }

 private:
  /// Returns GB/s of everything below `parent`.
  double fill(int parent, std::size_t level, const std::string& path) {
    double down = 0;
    const bool leaves = level + 1 == spec_.shape.size();
    for (int i = 0; i < spec_.shape[level]; ++i) {
      Wire up = wire_;
      int child = 0;
      if (leaves) {
        child =
            builder_.node(fmt::format("node{}", builder_.peek().rank_nodes.size()), NodeKind::host);
        builder_.rank(child);
      } else {
        const std::string name =
            path.empty() ? fmt::format("switch{}", i) : fmt::format("{}.{}", path, i);
        child = builder_.node(name, NodeKind::network_switch);
        up.gb_s = fill(child, level + 1, name) / over_;
      }
      builder_.both_ways(child, parent, up);
      down += up.gb_s;
    }
    return down;
  }

  Spec& spec_;
  TopologyBuilder builder_;
  Wire wire_;
  double over_;
};

Topology fat_tree(Spec& spec) {
  spec.expect_shape(2, 4, 1, "fat-tree:4x8, four leaf switches of eight ranks");
  const Wire wire = wire_of(spec);
  const double over = spec.number("over", 1);
  spec.expect_all_used();
  const long count = product(spec.shape);
  expect_size(spec, count, count * 2 * static_cast<long>(spec.shape.size()));
  return FatTree(spec, wire, over).build();
}

Topology one_switch(Spec& spec) {
  spec.expect_shape(1, 1, 1, "switch:8");
  const Wire wire = wire_of(spec);
  spec.expect_all_used();
  expect_size(spec, spec.shape[0], 2L * spec.shape[0]);
  return FatTree(spec, wire, 1).build();
}

/// Groups of routers: a full mesh of local links within a group, one global link between each
/// pair of groups, dealt to the routers of a group in turn (Kim et al., ISCA 2008).
Topology dragonfly(Spec& spec) {
  spec.expect_shape(3, 3, 1, "dragonfly:5x4x2, five groups of four routers of two ranks");
  const Wire wire = wire_of(spec);
  Wire global = wire;
  global.gb_s = spec.number("global", wire.gb_s);
  global.type = "global";
  Wire local = wire;
  local.gb_s = spec.number("local", wire.gb_s);
  local.type = "local";
  spec.expect_all_used();
  const int groups = spec.shape[0];
  const int routers = spec.shape[1];
  const long count = product(spec.shape);
  expect_size(spec, count, 2 * count + long{groups} * routers * routers + long{groups} * groups);

  TopologyBuilder builder(spec.text);
  std::vector<int> router;  // [groups · routers]
  for (int g = 0; g < groups; ++g) {
    for (int a = 0; a < routers; ++a) {
      router.push_back(
          builder.node(fmt::format("group{}.router{}", g, a), NodeKind::network_switch));
      for (int p = 0; p < spec.shape[2]; ++p) {
        const int rank =
            builder.node(fmt::format("node{}", builder.peek().rank_nodes.size()), NodeKind::host);
        builder.rank(rank);
        builder.both_ways(rank, router.back(), wire);
      }
      for (int b = 0; b < a; ++b) {
        builder.both_ways(router[g * routers + b], router[g * routers + a], local);
      }
    }
  }
  std::vector<int> next(groups, 0);  // the router of each group that gets the next global link
  for (int g = 0; g < groups; ++g) {
    for (int h = g + 1; h < groups; ++h) {
      builder.both_ways(router[g * routers + next[g]++ % routers],
                        router[h * routers + next[h]++ % routers], global);
    }
  }
  return builder.take();
}

struct Generator {
  std::string_view name;
  Topology (*make)(Spec&);
};

constexpr std::array kGenerators = {
    Generator{"ring", ring},
    Generator{"mesh", mesh},
    Generator{"torus", torus},
    Generator{"hypercube", hypercube},
    Generator{"full-mesh", full_mesh},
    Generator{"switch", one_switch},
    Generator{"star", one_switch},
    Generator{"fat-tree", fat_tree},
    Generator{"dragonfly", dragonfly},
    Generator{"lan", make_lan},
    Generator{"homo", make_lan},
    Generator{"pairs", make_lan},
    Generator{"slow", make_lan},
    Generator{"islands", make_lan},
    Generator{"random", make_random},
    Generator{"switch-tree", make_switch_tree},
    Generator{"random-lan", make_random_lan},
};

constexpr auto kGeneratorNames = [] {
  std::array<std::string_view, kGenerators.size()> names;
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = kGenerators[i].name;
  return names;
}();

}  // namespace

std::span<const std::string_view> generator_names() { return kGeneratorNames; }

std::optional<Topology> make_generated(Spec& spec) {
  for (const Generator& generator : kGenerators) {
    if (generator.name != spec.name) continue;
    if (spec.hosts) {
      spec.fail(0, fmt::format("a cluster is made of machines, and {} is a generator: put its "
                               "size into the shape",
                               spec.name));
    }
    return generator.make(spec);
  }
  return std::nullopt;
}

}  // namespace chorus
