#include "synth/packing/graph.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "base/hash.hpp"
#include "base/index.hpp"
#include "model/price/least_ratio.hpp"
#include "model/schedule/ways.hpp"

namespace chorus::synth {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

double capacity_of(double beta_s_per_byte) {
  return beta_s_per_byte > 0 ? 1e-9 / beta_s_per_byte : kNoLimit;
}

std::uint64_t extended(std::uint64_t hash, int link) {
  return Fnv1a(hash).stirred_word(static_cast<std::uint64_t>(link + 1)).value();
}

constexpr std::uint64_t kEmptyHash = Fnv1a().value();

}  // namespace

CapacityGraph::CapacityGraph(const Topology& topology, Direction direction)
    : node_of(topology.rank_nodes) {
  const Ways ways(topology);
  num_nodes = ways.num_nodes();
  for (std::size_t i = 0; i < topology.links.size(); ++i) {
    arcs.push_back({ways.src[i],
                    ways.dst[i],
                    capacity_of(topology.links[i].beta_s_per_byte),
                    {static_cast<int>(i)}});
  }
  add_groups(topology);
  if (direction == Direction::reversed) {
    for (Arc& arc : arcs) std::swap(arc.src, arc.dst);
  }
  std::erase_if(arcs, [](const Arc& arc) { return arc.src == arc.dst; });
  ranks_on.resize(at(num_nodes));
  for (Rank rank = 0; rank < topology.world_size(); ++rank) {
    ranks_on[at(node_of[at(rank)])].push_back(rank);
  }
  for (int node = 0; node < num_nodes; ++node) {
    if (is_terminal(node)) terminals.push_back(node);
  }
}

void CapacityGraph::add_groups(const Topology& topology) {
  for (const Topology::PortGroup& group : topology.port_groups) {
    std::vector<int> links = group.links;
    std::sort(links.begin(), links.end());
    links.erase(std::unique(links.begin(), links.end()), links.end());
    const double gb_s = capacity_of(group.beta_s_per_byte);
    double members = 0;
    for (const int link : links) members += arcs[at(link)].gb_s;
    if (links.empty() || gb_s >= members * (1 - 1e-9)) continue;  // its members limit it already
    const Arc first = arcs[at(links.front())];
    const auto all = [&](auto same) {
      return std::all_of(links.begin(), links.end(),
                         [&](int link) { return same(arcs[at(link)]); });
    };
    if (links.size() == 1) {
      arcs[at(links.front())].gb_s = std::min(first.gb_s, gb_s);
    } else if (all([&](const Arc& arc) { return arc.src == first.src; })) {
      add_star(links, true, gb_s);
    } else if (all([&](const Arc& arc) { return arc.dst == first.dst; })) {
      add_star(links, false, gb_s);
    } else {
      faithful = false;
    }
  }
}

void CapacityGraph::add_star(const std::vector<int>& links, bool leaving, double gb_s) {
  const int hub = num_nodes++;
  int centre = 0;
  for (const int link : links) {
    Arc& arc = arcs[at(link)];
    centre = std::exchange(leaving ? arc.src : arc.dst, hub);
    arc.gb_s = std::min(arc.gb_s, gb_s);
  }
  arcs.push_back({leaving ? centre : hub, leaving ? hub : centre, gb_s, {}});
}

RoutePieces::RoutePieces(const Topology& topology, const Routes& routes, Direction direction) {
  for (Rank src = 0; src < topology.world_size(); ++src) {
    for (Rank dst = 0; dst < topology.world_size(); ++dst) {
      if (src == dst) continue;
      std::vector<int> path = routes.path(src, dst);
      if (direction == Direction::reversed) std::reverse(path.begin(), path.end());
      for (std::size_t begin = 0; begin < path.size(); ++begin) {
        std::uint64_t hash = kEmptyHash;
        for (std::size_t end = begin; end < path.size(); ++end) {
          hashes_.insert(hash = extended(hash, path[end]));
        }
      }
    }
  }
}

bool RoutePieces::contain(const std::vector<int>& first, const std::vector<int>& second) const {
  std::uint64_t hash = kEmptyHash;
  for (const int link : first) hash = extended(hash, link);
  for (const int link : second) hash = extended(hash, link);
  return hash == kEmptyHash || hashes_.contains(hash);
}

double cut_rate(const CapacityGraph& graph, const std::vector<int>& weights) {
  double finite = 1;
  for (const CapacityGraph::Arc& arc : graph.arcs) finite += arc.gb_s == kNoLimit ? 0 : arc.gb_s;
  std::vector<CapacityArc> arcs;
  for (const CapacityGraph::Arc& arc : graph.arcs) {
    arcs.push_back({arc.src, arc.dst, arc.gb_s == kNoLimit ? 1e5 * finite : arc.gb_s});
  }
  std::vector<double> by_node(at(graph.num_nodes), 0);
  for (std::size_t node = 0; node < weights.size(); ++node) by_node[node] = weights[node];
  const auto crossing = [&](const std::vector<char>& side) {
    double sum = 0;
    for (const CapacityArc& arc : arcs) {
      if (side[at(arc.src)] != 0 && side[at(arc.dst)] == 0) sum += arc.capacity;
    }
    return sum;
  };
  return least_ratio(arcs, by_node, graph.terminals, crossing).ratio;
}

}  // namespace chorus::synth
