#include "perf/families/instances.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <tuple>
#include <utility>
#include <vector>

#include "base/hash.hpp"
#include "chorus/error.hpp"
#include "chorus/topology.hpp"
#include "model/schedule/ways.hpp"
#include "topology/catalog/draw.hpp"
#include "topology/discover/sources.hpp"

namespace chorus::perf {
namespace {

constexpr int kLeastRanks = 4;
constexpr int kMostAttempts = 1000;

constexpr std::array kBoxes = {"dgx1",     "ndv2",   "p3dn",    "dgx2",      "dgx-a100",
                               "dgx-h100", "mi250x", "mi250",   "mi300x",    "z52",
                               "pcie4",    "pcie8",  "cpu:2x4", "pcie:2x2x2"};

/// A number of each order of magnitude alike.
int size(Draw& draw, int least, int most) {
  return static_cast<int>(std::lround(draw.magnitude(least, most)));
}

std::size_t seed_of(Draw& draw) { return draw.below(60'000) + 1; }

int ranks_of(std::string_view name) { return topology_from_name(name).world_size(); }

/// So many boxes that there are about `ranks` ranks.
std::string boxes(Draw& draw, int ranks, std::string_view box) {
  const int hosts = std::clamp(size(draw, 1, std::max(1, ranks / ranks_of(box))), 1, 128);
  return hosts == 1 ? std::string(box) : fmt::format("{}*{}", hosts, box);
}

/// The same, two boxes at least.
std::string cluster(Draw& draw, int ranks, std::string_view box) {
  const int hosts = std::clamp(size(draw, 2, std::max(2, ranks / ranks_of(box))), 2, 128);
  return fmt::format("{}*{}", hosts, box);
}

std::string equal_boxes(Draw& draw, int most) {
  const int ranks = size(draw, 2 * kLeastRanks, most);
  std::string name = boxes(draw, ranks, draw.of(kBoxes));
  if (draw.one_in(4) && name.find('*') != std::string::npos) name += ",rails=yes";
  return name;
}

std::string mixes(Draw& draw, int most) {
  const int kinds = draw.from(2, 3);
  const int ranks = size(draw, 2 * kLeastRanks, most);
  std::string name;
  for (int kind = 0; kind < kinds; ++kind) {
    const std::string_view box = draw.of(kBoxes);
    const int hosts = std::clamp(draw.from(1, std::max(1, ranks / kinds / ranks_of(box))), 1, 40);
    name += fmt::format("{}{}*{}", name.empty() ? "" : "+", hosts, box);
    if (draw.one_in(3)) name += fmt::format(",nic={}", draw.of(std::array{6.25, 12.5, 25.0, 50.0}));
  }
  return name;
}

/// A cable that `wanted` likes, as "A-B"; empty if there is none.
std::string cable(Draw& draw, const Topology& t,
                  const std::function<bool(NodeKind, NodeKind)>& wanted) {
  std::vector<std::string> cables;
  for (const Topology::Link& link : t.links) {
    const auto& [a, b] = std::tie(t.nodes[static_cast<std::size_t>(link.src)],
                                  t.nodes[static_cast<std::size_t>(link.dst)]);
    if (link.src < link.dst && wanted(a.kind, b.kind)) cables.push_back(a.name + "-" + b.name);
  }
  return cables.empty() ? "" : draw.of(cables);
}

std::string node(Draw& draw, const Topology& t, NodeKind kind) {
  std::vector<std::string> nodes;
  for (const Topology::Node& node : t.nodes) {
    if (node.kind == kind) nodes.push_back(node.name);
  }
  return nodes.empty() ? "" : draw.of(nodes);
}

std::string faults(Draw& draw, int most) {
  const int ranks = size(draw, 2 * kLeastRanks, most);
  std::string name = boxes(draw, ranks, draw.of(kBoxes));
  const Topology whole = topology_from_name(name);
  for (int fault = draw.from(1, 3); fault > 0; --fault) {
    const int what = draw.from(0, 2);
    if (what == 0) {
      const std::string gpu = node(draw, whole, NodeKind::gpu);
      if (!gpu.empty()) name += ",without=" + gpu;
    } else if (what == 1) {
      const std::string cut = cable(draw, whole, [](NodeKind a, NodeKind b) {
        return a == NodeKind::gpu && b == NodeKind::gpu;
      });
      if (!cut.empty()) name += ",cut=" + cut;
    } else {
      const std::string nic = node(draw, whole, NodeKind::nic);
      if (!nic.empty()) name += ",slow=" + nic + ":0.5";
    }
  }
  return name;
}

std::string shared_nics(Draw& draw, int most) {
  constexpr std::array kGpuBoxes = {"dgx1",   "dgx2",   "dgx-a100", "dgx-h100",
                                    "mi250x", "mi300x", "mi250",    "z52"};
  const int ranks = size(draw, 2 * kLeastRanks, most);
  return fmt::format("{},gpus-per-nic={},nic={}", cluster(draw, ranks, draw.of(kGpuBoxes)),
                     draw.of(std::array{2, 4, 8}), draw.of(std::array{12.5, 25.0, 50.0}));
}

std::string one_way(Draw& draw, int most) {
  const int ranks = size(draw, kLeastRanks, most);
  std::string name = draw.one_in(2)
                         ? fmt::format("random:{},degree=4,seed={}", ranks, seed_of(draw))
                         : boxes(draw, std::max(ranks, 2 * kLeastRanks), draw.of(kBoxes));
  const Topology whole = topology_from_name(name);
  for (int slow = draw.from(1, 3); slow > 0; --slow) {
    std::string way = cable(draw, whole, [](NodeKind, NodeKind) { return true; });
    // Names of nodes in these wirings have no '-' of their own.
    way[way.find('-')] = '>';
    name += fmt::format(",slow={}:{}", way, draw.of(std::array{0.25, 0.5, 0.75}));
  }
  return name;
}

std::string islands(Draw& draw, int most) {
  const int count = draw.from(2, 6);
  std::vector<int> hosts;
  for (int i = 0; i < count; ++i) hosts.push_back(size(draw, 1, std::clamp(most / count, 2, 12)));
  return fmt::format("lan:{},trunk={}", fmt::join(hosts, "x"),
                     draw.of(std::array{0.025, 0.05, 0.125, 0.25, 0.5}));
}

std::string grid(Draw& draw, int most, std::string_view kind) {
  const int ranks = size(draw, kLeastRanks, std::min(most, 512));
  const int dimensions = draw.from(2, 3);
  std::vector<int> shape;
  for (int i = 0; i < dimensions; ++i) {
    const double edge = std::pow(ranks, 1.0 / dimensions);
    shape.push_back(std::max(2, static_cast<int>(std::lround(edge * draw.from(60, 160) / 100))));
  }
  return fmt::format("{}:{}", kind, fmt::join(shape, "x"));
}

std::string tori(Draw& draw, int most) { return grid(draw, most, "torus"); }
std::string meshes(Draw& draw, int most) { return grid(draw, most, "mesh"); }

std::string dragonflies(Draw& draw, int most) {
  const int groups = draw.from(3, 9);
  const int routers = draw.from(2, 6);
  const int ranks = std::max(1, size(draw, kLeastRanks, most) / (groups * routers));
  return fmt::format("dragonfly:{}x{}x{},global={},local={}", groups, routers, std::min(ranks, 8),
                     draw.of(std::array{0.5, 1.0, 2.0, 4.0}), draw.of(std::array{1.0, 2.0}));
}

std::string fat_trees(Draw& draw, int most) {
  const int ranks = size(draw, 2 * kLeastRanks, most);
  const int leaves = std::clamp(size(draw, 2, std::max(2, ranks / 2)), 2, 32);
  std::string name = fmt::format("fat-tree:{}x{},over={}", leaves, std::max(2, ranks / leaves),
                                 draw.of(std::array{1, 2, 3}));
  if (draw.one_in(2)) {  // of several uplinks of a leaf one is missing
    name += fmt::format(",slow=switch{}-core:{}", draw.from(0, leaves - 1),
                        draw.of(std::array{0.5, 0.75}));
  }
  return name;
}

std::string switch_trees(Draw& draw, int most) {
  return fmt::format("switch-tree:{},seed={},spread={}", size(draw, kLeastRanks, most),
                     seed_of(draw), draw.of(std::array{1, 4, 10}));
}

std::string random_graphs(Draw& draw, int most) {
  return fmt::format("random:{},degree={},seed={},spread={}", size(draw, kLeastRanks, most),
                     draw.from(3, 6), seed_of(draw), draw.of(std::array{1, 4, 10}));
}

std::string lans(Draw& draw, int most) {
  return fmt::format("random-lan:{},hosts={}", seed_of(draw),
                     size(draw, kLeastRanks, std::min(most, 64)));
}

struct Generator {
  Family family;
  std::string (*make)(Draw&, int most_ranks);
};

constexpr std::array kGenerators = {
    Generator{{"boxes", "1 to 128 equal boxes of the catalog"}, equal_boxes},
    Generator{{"mixes", "two or three kinds of boxes, each with its own NICs"}, mixes},
    Generator{{"faults", "boxes with dead GPUs, missing cables, NICs of half speed"}, faults},
    Generator{{"shared-nics", "boxes whose GPUs share a NIC by two, four or eight"}, shared_nics},
    Generator{{"one-way", "cables that are slower in one direction"}, one_way},
    Generator{{"islands", "unequal islands of hosts behind trunks"}, islands},
    Generator{{"tori", "tori of two and three dimensions"}, tori},
    Generator{{"meshes", "meshes of two and three dimensions"}, meshes},
    Generator{{"dragonflies", "groups of routers"}, dragonflies},
    Generator{{"fat-trees", "oversubscribed, some with a leaf that lost uplinks"}, fat_trees},
    Generator{{"switch-trees", "random trees of switches"}, switch_trees},
    Generator{{"random", "random graphs of nearly equal degree"}, random_graphs},
    Generator{{"lans", "Ethernet clusters of unequal hosts with up to three cables each"}, lans},
};

constexpr auto kFamilies = [] {
  std::array<Family, kGenerators.size()> list;
  for (std::size_t i = 0; i < list.size(); ++i) list[i] = kGenerators[i].family;
  return list;
}();

/// True if every rank's node can be reached from the first one's and the other way round.
bool connected(const Topology& topology) {
  const Ways ways(topology);
  for (const bool forwards : {true, false}) {
    const std::vector<int>& from = forwards ? ways.src : ways.dst;
    const std::vector<int>& to = forwards ? ways.dst : ways.src;
    std::vector<std::vector<int>> next(static_cast<std::size_t>(ways.num_nodes()));
    for (std::size_t link = 0; link < from.size(); ++link) {
      next[static_cast<std::size_t>(from[link])].push_back(to[link]);
    }
    std::vector<int> reached = {topology.rank_nodes.front()};
    std::vector<char> seen(next.size(), 0);
    seen[static_cast<std::size_t>(reached.front())] = 1;
    for (std::size_t i = 0; i < reached.size(); ++i) {
      for (const int node : next[static_cast<std::size_t>(reached[i])]) {
        if (std::exchange(seen[static_cast<std::size_t>(node)], 1) == 0) reached.push_back(node);
      }
    }
    const auto missing = [&](int node) { return seen[static_cast<std::size_t>(node)] == 0; };
    if (std::ranges::any_of(topology.rank_nodes, missing)) return false;
  }
  return true;
}

}  // namespace

std::span<const Family> families() { return kFamilies; }

std::string family_instance(std::string_view family, std::uint64_t seed, int index,
                            int most_ranks) {
  const auto generator = std::ranges::find_if(
      kGenerators, [&](const Generator& one) { return one.family.name == family; });
  if (generator == kGenerators.end()) {
    std::vector<std::string_view> names;
    for (const Family& known : kFamilies) names.push_back(known.name);
    throw InputError(
        fmt::format("there is no family \"{}\"; there are: {}", family, fmt::join(names, ", ")));
  }
  if (most_ranks < 2 * kLeastRanks) {
    throw InputError(fmt::format("families have wirings of up to {} ranks and more, not {}",
                                 2 * kLeastRanks, most_ranks));
  }
  Fnv1a mixed;
  mixed.bytes(family).stirred_word(seed).stirred_word(static_cast<std::uint64_t>(index));
  Draw draw(mixed.value());
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    std::string name = generator->make(draw, most_ranks);
    const Topology topology = topology_from_name(name);
    const int ranks = topology.world_size();
    if (ranks >= kLeastRanks && ranks <= most_ranks && connected(topology)) return name;
  }
  throw InputError(
      fmt::format("family \"{}\" has no wiring of up to {} ranks", family, most_ranks));
}

}  // namespace chorus::perf
