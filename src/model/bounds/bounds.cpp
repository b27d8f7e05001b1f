#include "model/bounds/bounds.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <utility>

#include "base/index.hpp"
#include "chorus/error.hpp"
#include "model/bounds/cheapest.hpp"
#include "model/bounds/network.hpp"
#include "model/schedule/automorphism.hpp"
#include "model/schedule/contract.hpp"
#include "model/schedule/ways.hpp"

namespace chorus {
namespace {

constexpr int kMostAlone = 128;  // ranks whose distances are found one by one

using bounds::Direction;
using bounds::Network;
using bounds::Rate;

/// Least sums of `length(link)` from `source`, by node; infinite where no path leads.
template <class Length>
std::vector<double> distances(const Ways& ways, const std::vector<std::vector<int>>& out,
                              int source, Length length) {
  bounds::Cheapest cheapest;
  bounds::find_cheapest(
      out, std::span(&source, 1), length, [&](int link) { return ways.dst[at(link)]; }, cheapest);
  return std::move(cheapest.distance);
}

bool spreads_from_root(CollectiveKind kind) {
  return kind == CollectiveKind::broadcast || kind == CollectiveKind::scatter;
}

bool sends(const Collective& collective, Rank src) {
  return !spreads_from_root(collective.kind) || src == collective.root;
}

/// True if something that `src` holds must reach `dst`.
bool needs(const Collective& collective, Rank src, Rank dst) {
  const bool rooted = is_rooted(collective.kind);
  return !rooted || (spreads_from_root(collective.kind) ? src : dst) == collective.root;
}

/// Latency and steps: the farthest pair of ranks that must hear of each other. Also finds the
/// pairs that cannot. Ranks from `sources` on are like others before.
void find_latency(const Topology& topology, const Collective& collective, Rank sources,
                  Bound& bound) {
  const Ways ways(topology);
  std::vector<std::vector<int>> out(at(ways.num_nodes()));
  std::vector<char> terminal(out.size(), 0);
  for (std::size_t link = 0; link < topology.links.size(); ++link) {
    out[at(ways.src[link])].push_back(static_cast<int>(link));
  }
  for (const int node : topology.rank_nodes) terminal[at(node)] = 1;
  bound.steps = topology.world_size() > 1 ? 1 : 0;
  for (Rank src = 0; src < sources; ++src) {
    if (!sends(collective, src)) continue;
    const int source = topology.rank_nodes[at(src)];
    const auto alpha =
        distances(ways, out, source, [&](int link) { return topology.links[at(link)].alpha_s; });
    const auto hops = distances(ways, out, source, [&](int link) {
      return terminal[at(ways.dst[at(link)])] != 0 ? 1.0 : 0.0;
    });
    for (Rank dst = 0; dst < topology.world_size(); ++dst) {
      if (dst == src || !needs(collective, src, dst)) continue;
      const int target = topology.rank_nodes[at(dst)];
      if (std::isinf(hops[at(target)])) {
        throw TopologyError(fmt::format(
            "the topology '{}' has no path from rank {} ({}) to rank {} ({}), which {} needs; add "
            "the missing link",
            topology.name, src, topology.nodes[at(source)].name, dst,
            topology.nodes[at(target)].name, name_of(collective.kind)));
      }
      bound.latency_s = std::max(bound.latency_s, alpha[at(target)]);
      bound.steps = std::max(bound.steps, static_cast<int>(hops[at(target)]));
    }
  }
}

std::vector<double> share_of_each_rank(const Network& network) {
  std::vector<double> sources(at(network.num_nodes()), 0);
  for (const int node : network.terminals) sources[at(node)] = network.weight(node);
  return sources;
}

std::vector<double> all_from(const Network& network, int node) {
  std::vector<double> sources(at(network.num_nodes()), 0);
  sources[at(node)] = 1;
  return sources;
}

/// `rate` in GB/s of `share` of the collective's size. `least`: how often what `rate` counts
/// crosses any cut, at least; a rate that no real capacity gives is none.
double seconds_per_byte(const Network& network, const Rate& rate, double share, double least = 1) {
  return rate.gb_s * least > 2 * network.total ? 0 : share / (rate.gb_s * 1e9);
}

void set_bandwidth(const Network& network, const Rate& rate, double share, Bound& bound,
                   double least = 1) {
  bound.seconds_per_byte = seconds_per_byte(network, rate, share, least);
  bound.method = rate.method;
  bound.tight = rate.tight;
  if (bound.seconds_per_byte <= 0) {
    bound.cut = "every link carries any amount at once";
    return;
  }
  bound.cut_links = rate.arcs;
  bound.cut_port_groups = rate.groups;
  bound.cut = bounds::describe(network, rate);
  if (rate.side.empty()) return;
  for (Rank rank = 0; rank < network.topology.world_size(); ++rank) {
    const bool inside = rate.side[at(network.topology.rank_nodes[at(rank)])] != 0;
    if (inside == (network.direction == Direction::forward)) bound.cut_ranks.push_back(rank);
  }
}

void all_reduce_bound(const Topology& topology, Bound& bound) {
  const Network forward(topology, Direction::forward);
  const Network reversed(topology, Direction::reversed);
  const double share = 1.0 / topology.world_size();
  const Rate gather = bounds::spread_rate(forward, share_of_each_rank(forward));
  const Rate scatter = bounds::spread_rate(reversed, share_of_each_rank(reversed));
  set_bandwidth(forward, bounds::all_reduce_rate(forward), 1.0, bound);
  bound.reduce_scatter_all_gather =
      seconds_per_byte(forward, gather, share) + seconds_per_byte(reversed, scatter, share);
  const auto is_switch = [](const Topology::Node& node) {
    return node.kind == NodeKind::gpu_switch || node.kind == NodeKind::network_switch;
  };
  if (std::any_of(topology.nodes.begin(), topology.nodes.end(), is_switch)) {
    bound.switches_reducing = seconds_per_byte(forward, bounds::all_reduce_cut_rate(forward), 1.0);
  }
  bound.tight = gather.tight && scatter.tight &&
                bound.reduce_scatter_all_gather <= bound.seconds_per_byte * (1 + 1e-6);
}

void bandwidth_bound(const Topology& topology, const Collective& collective, Bound& bound) {
  const bool towards_root_or_owner = collective.kind == CollectiveKind::reduce_scatter ||
                                     collective.kind == CollectiveKind::reduce ||
                                     collective.kind == CollectiveKind::gather;
  const Network network(topology, towards_root_or_owner ? Direction::reversed : Direction::forward);
  const double share = 1.0 / topology.world_size();
  const int root_node = topology.rank_nodes[at(collective.root)];
  switch (collective.kind) {
    case CollectiveKind::all_gather:
    case CollectiveKind::reduce_scatter:
      set_bandwidth(network, bounds::spread_rate(network, share_of_each_rank(network)), share,
                    bound);
      return;
    case CollectiveKind::broadcast:
    case CollectiveKind::reduce:
      set_bandwidth(network, bounds::spread_rate(network, all_from(network, root_node)), 1.0,
                    bound);
      return;
    case CollectiveKind::gather:
    case CollectiveKind::scatter:
      set_bandwidth(network, bounds::scatter_rate(network, root_node), share, bound);
      return;
    case CollectiveKind::all_to_all:
      set_bandwidth(network, bounds::exchange_rate(network), share, bound,
                    topology.world_size() - 1);
      return;
    case CollectiveKind::all_reduce:
      all_reduce_bound(topology, bound);
      return;
    case CollectiveKind::barrier:
      return;
  }
}

}  // namespace

double Bound::algbw_gb_s() const {
  return seconds_per_byte > 0 ? 1e-9 / seconds_per_byte : std::numeric_limits<double>::infinity();
}

Bound lower_bound(const Topology& topology, Collective collective) {
  const int n = topology.world_size();
  if (is_rooted(collective.kind) && (collective.root < 0 || collective.root >= n)) {
    throw InputError(fmt::format("root {} is not a rank of '{}', which has {}; give one below {}",
                                 collective.root, topology.name, n, n));
  }
  if (!is_rooted(collective.kind)) collective.root = 0;
  Bound bound{.method = "latency only", .tight = true, .cut = "no bytes to carry"};
  if (n == 0) return bound;
  const bool alike = !is_rooted(collective.kind) && n > kMostAlone;
  find_latency(topology, collective, alike ? repetition_of(topology).cells.size() : n, bound);
  const bool one_node = std::all_of(topology.rank_nodes.begin(), topology.rank_nodes.end(),
                                    [&](int node) { return node == topology.rank_nodes[0]; });
  if (collective.kind != CollectiveKind::barrier && !one_node) {
    bandwidth_bound(topology, collective, bound);
    const CollectiveKind kind = collective.kind;
    const Network network(topology, Direction::forward);
    const bool gathers = kind == CollectiveKind::all_gather;
    const bool scatters = kind == CollectiveKind::reduce_scatter;
    if (gathers || scatters || kind == CollectiveKind::all_reduce) {
      bound.crossings = bounds::crossings(network, !gathers, !scatters);
    }
    if (bound.seconds_per_byte > 0) {
      bound.crossings.push_back(
          {.alpha_s = bounds::least_hop_s(network), .pairs_s_per_byte = bound.seconds_per_byte});
    }
  }
  return bound;
}

}  // namespace chorus
