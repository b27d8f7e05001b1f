#include "synth/packing/graph.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "base/index.hpp"
#include "model/max_flow.hpp"

namespace chorus::synth {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

double capacity_of(double beta_s_per_byte) {
  return beta_s_per_byte > 0 ? 1e-9 / beta_s_per_byte : kNoLimit;
}

std::uint64_t extended(std::uint64_t hash, int link) {  // FNV-1a by words, then mixed
  hash = (hash ^ static_cast<std::uint64_t>(link + 1)) * 0x100000001b3ULL;
  return hash ^ (hash >> 29);
}

constexpr std::uint64_t kEmptyHash = 0xcbf29ce484222325ULL;

}  // namespace

CapacityGraph::CapacityGraph(const Topology& topology, Direction direction)
    : num_nodes(static_cast<int>(topology.nodes.size())), node_of(topology.rank_nodes) {
  for (std::size_t i = 0; i < topology.links.size(); ++i) {
    const Topology::Link& link = topology.links[i];
    arcs.push_back({link.src, link.dst, capacity_of(link.beta_s_per_byte), {static_cast<int>(i)}});
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
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  double finite = 1;
  for (const CapacityGraph::Arc& arc : graph.arcs) finite += arc.gb_s == kNoLimit ? 0 : arc.gb_s;
  const auto capacity = [&](const CapacityGraph::Arc& arc) {
    return arc.gb_s == kNoLimit ? 1e5 * finite : arc.gb_s;
  };
  const int feeder = graph.num_nodes;
  MaxFlow flow(graph.num_nodes + 1);
  for (const CapacityGraph::Arc& arc : graph.arcs) flow.add_arc(arc.src, arc.dst, capacity(arc));
  std::vector<int> feeds(weights.size(), -1);
  for (const int node : graph.terminals) {
    if (weights[at(node)] > 0) feeds[at(node)] = flow.add_arc(feeder, node, 0);
  }
  // Newton's method on the ratio of a cut (Dinkelbach 1967), as lower_bound() does it.
  double rate = kNoLimit;
  const auto try_side = [&](const std::vector<char>& side) {
    double inside = 0;
    for (std::size_t node = 0; node < weights.size(); ++node) {
      inside += side[node] != 0 ? weights[node] : 0;
    }
    if (inside <= 0) return false;
    double crossing = 0;
    for (const CapacityGraph::Arc& arc : graph.arcs) {
      if (side[at(arc.src)] != 0 && side[at(arc.dst)] == 0) crossing += capacity(arc);
    }
    if (crossing / inside >= rate * (1 - 1e-12)) return false;
    rate = crossing / inside;
    return true;
  };
  for (const int node : graph.terminals) {
    std::vector<char> side(at(graph.num_nodes), 1);
    side[at(node)] = 0;
    try_side(side);
  }
  for (bool again = rate != kNoLimit; again;) {
    again = false;
    for (const int node : graph.terminals) {
      if (weights[at(node)] == total) continue;  // the only source
      for (const int source : graph.terminals) {
        if (feeds[at(source)] >= 0) {
          flow.set_capacity(feeds[at(source)], weights[at(source)] * rate);
        }
      }
      if (flow.solve(feeder, node) < total * rate * (1 - 1e-10) && try_side(flow.source_side())) {
        again = true;
      }
    }
  }
  return rate;
}

}  // namespace chorus::synth
