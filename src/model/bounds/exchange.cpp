// Rates of exchanging distinct data: all-to-all, scatter, gather.

#include "model/bounds/exchange.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "base/check.hpp"
#include "base/index.hpp"
#include "model/bounds/lp.hpp"
#include "model/bounds/network.hpp"
#include "model/bounds/partitions.hpp"
#include "model/price/max_flow.hpp"

namespace chorus::bounds {
namespace {

constexpr double kSame = 1e-9;  // relative: two figures that should be equal are
constexpr std::size_t kMaxVariables =
    30'000;  // of a linear program that is solved in seconds; 48,400 took 78

Commodity commodity_from(const Network& network, int source) {
  Commodity commodity{source, std::vector<double>(at(network.num_nodes()), 0)};
  for (const int node : network.terminals) {
    if (node != source) commodity.demand[at(node)] = network.weight(source) * network.weight(node);
  }
  return commodity;
}

/// A set of nodes whose exit alone limits all commodities to `gb_s`, among those reached from some
/// terminal without crossing a limiting arc. Single commodities: demand that must leave the set.
std::optional<Side> explaining_cut(const Network& network, const std::vector<Commodity>& all,
                                   const std::vector<char>& limiting, double gb_s) {
  const auto out = arcs_by_source(network);
  for (const int start : network.terminals) {
    Side side = reached_before(network, out, limiting, start);
    double demand = 0;
    for (const Commodity& commodity : all) {
      if (side[at(commodity.source)] == 0) continue;
      for (std::size_t node = 0; node < side.size(); ++node) {
        if (side[node] == 0) demand += commodity.demand[node];
      }
    }
    if (demand > 0 && network.crossing(side) <= gb_s * demand * (1 + 1e-6)) return side;
  }
  return std::nullopt;
}

/// Fills in the limit: a cut if one explains it, else all that is full.
void explain(const Network& network, const std::vector<Commodity>& all,
             const std::vector<char>& limiting, std::vector<int> limiting_groups, Rate& rate) {
  rate.groups = std::move(limiting_groups);
  if (auto side = explaining_cut(network, all, limiting, rate.gb_s)) {
    rate.arcs = network.arcs_across(*side);
    rate.side = *std::move(side);
    std::erase_if(rate.groups, [&](int group) {
      const std::vector<int>& members = network.groups[at(group)].arcs;
      return std::none_of(rate.arcs.begin(), rate.arcs.end(), [&](int arc) {
        return std::binary_search(members.begin(), members.end(), arc);
      });
    });
    return;
  }
  for (std::size_t arc = 0; arc < limiting.size(); ++arc) {
    if (limiting[arc] != 0) rate.arcs.push_back(static_cast<int>(arc));
  }
  rate.words = "no single cut, full at once";
}

/// Maximum concurrent flow, one flow variable per commodity and arc (Shahrokhi & Matula 1990).
class FlowProgram {
 public:
  FlowProgram(const Network& network, const std::vector<Commodity>& all)
      : network_(network), sums_(network.arcs.size()) {
    rate_ = program_.add_variable(0, LinearProgram::kInfinity, 1);
    for (const Commodity& commodity : all) {
      // What enters its source again does no good.
      std::vector<int>& flow = flows_.emplace_back(network.arcs.size(), -1);
      for (std::size_t arc = 0; arc < network.arcs.size(); ++arc) {
        if (network.arcs[arc].dst == commodity.source) continue;
        flow[arc] = program_.add_variable(0, LinearProgram::kInfinity, 0);
        sums_[arc].push_back({flow[arc], 1});
      }
    }
    for (std::size_t i = 0; i < all.size(); ++i) add_conservation(all[i], flows_[i]);
    for (std::size_t arc = 0; arc < network.arcs.size(); ++arc) {
      arc_rows_.push_back(
          program_.add_row(-LinearProgram::kInfinity, network.arcs[arc].capacity, sums_[arc]));
    }
    for (const Network::Group& group : network.groups) {
      std::vector<LinearProgram::Term> terms;
      for (const int arc : group.arcs) {
        terms.insert(terms.end(), sums_[at(arc)].begin(), sums_[at(arc)].end());
      }
      group_rows_.push_back(program_.add_row(-LinearProgram::kInfinity, group.capacity, terms));
    }
  }

  Rate solve(const std::vector<Commodity>& all) {
    CHORUS_CHECK(program_.maximize(), "sending nothing at all is always possible");
    Rate rate{.gb_s = program_.value(rate_), .method = "LP"};
    std::vector<char> limiting(arc_rows_.size(), 0);
    std::vector<int> groups;
    // Prices sum to 1/rate over the capacities, so "none" is relative to that.
    for (std::size_t arc = 0; arc < arc_rows_.size(); ++arc) {
      if (priced(arc_rows_[arc], network_.arcs[arc].capacity, rate.gb_s)) limiting[arc] = 1;
    }
    for (std::size_t group = 0; group < group_rows_.size(); ++group) {
      if (!priced(group_rows_[group], network_.groups[group].capacity, rate.gb_s)) continue;
      groups.push_back(static_cast<int>(group));
      for (const int arc : network_.groups[group].arcs) limiting[at(arc)] = 1;
    }
    explain(network_, all, limiting, groups, rate);
    return rate;
  }

 private:
  [[nodiscard]] bool priced(int row, double capacity, double gb_s) const {
    return program_.price(row) * capacity > 1e-7 * gb_s;
  }

  void add_conservation(const Commodity& commodity, const std::vector<int>& flow) {
    std::vector<std::vector<LinearProgram::Term>> rows(at(network_.num_nodes()));
    for (std::size_t arc = 0; arc < network_.arcs.size(); ++arc) {
      const Network::Arc& ends = network_.arcs[arc];
      if (flow[arc] < 0 || ends.src == ends.dst) continue;
      rows[at(ends.dst)].push_back({flow[arc], 1});
      rows[at(ends.src)].push_back({flow[arc], -1});
    }
    for (std::size_t node = 0; node < rows.size(); ++node) {
      if (static_cast<int>(node) == commodity.source) continue;
      if (commodity.demand[node] > 0) rows[node].push_back({rate_, -commodity.demand[node]});
      if (!rows[node].empty()) program_.add_row(0, 0, rows[node]);
    }
  }

  const Network& network_;
  LinearProgram program_;
  int rate_ = 0;
  std::vector<std::vector<int>> flows_;  // [commodity][arc], -1: always zero
  std::vector<std::vector<LinearProgram::Term>> sums_;
  std::vector<int> arc_rows_, group_rows_;
};

/// Both sides of every part of the natural partitions.
std::vector<Side> candidate_sides(const Network& network) {
  std::vector<Side> sides;
  for (const Partition& partition : natural_partitions(network)) {
    std::set<int> parts;  // others are like one of them
    for (const int node : network.representatives) {
      if (partition.part_of[at(node)] >= 0) parts.insert(partition.part_of[at(node)]);
    }
    for (const int part : parts) {
      sides.push_back(partition.side(part));
      sides.push_back(turned(sides.back()));
    }
  }
  for (Side& side : block_sides(network)) sides.push_back(std::move(side));
  return sides;
}

/// From what one cell's commodities load each arc with to what those of all cells do: shared out
/// over each orbit of arcs they load it as all do.
void share_out(const Network& network, std::vector<double>& load) {
  const std::vector<int> orbit = orbits_of_arcs(network);
  std::vector<double> sum(load.size(), 0);
  std::vector<int> members(load.size(), 0);
  for (std::size_t arc = 0; arc < load.size(); ++arc) {
    sum[at(orbit[arc])] += load[arc];
    ++members[at(orbit[arc])];
  }
  for (std::size_t arc = 0; arc < load.size(); ++arc) {
    load[arc] = sum[at(orbit[arc])] * network.repetition->cells.count() / members[at(orbit[arc])];
  }
}

/// The exchange over shortest paths, and the simplest limits: the exits and entrances of terminals,
/// machines and the like, and the volume (bytes times hops over all capacities). Where the two
/// meet, as on regular wirings and behind one switch, no linear program is needed.
struct QuickExchange {
  double reached = 0;  // by shortest paths
  Rate limit;          // the best of the simple limits
};

QuickExchange quick_exchange(const Network& network, const std::vector<Commodity>& all) {
  QuickExchange quick{.reached = kNoLimit,
                      .limit = {.gb_s = kNoLimit, .method = "", .tight = false}};
  const auto out = arcs_by_source(network);
  std::vector<double> load(network.arcs.size(), 0);
  double hops = 0;
  for (const Commodity& commodity : all) {
    const ShortestPaths shortest(network, out, commodity.source);
    shortest.spread(network, out, commodity, load);
    for (std::size_t node = 0; node < commodity.demand.size(); ++node) {
      hops += commodity.demand[node] * shortest.distance[node];
    }
  }
  if (network.repetition) {
    share_out(network, load);
    hops *= network.repetition->cells.count();
  }
  double capacity = 0;
  for (std::size_t arc = 0; arc < load.size(); ++arc) {
    capacity += network.arcs[arc].capacity;
    if (load[arc] > 0)
      quick.reached = std::min(quick.reached, network.arcs[arc].capacity / load[arc]);
  }
  for (const Network::Group& group : network.groups) {
    double sum = 0;
    for (const int arc : group.arcs) sum += load[at(arc)];
    if (sum > 0) quick.reached = std::min(quick.reached, group.capacity / sum);
  }

  for (const Side& side : candidate_sides(network)) {
    const double gb_s = network.crossing(side) / demand_across(network, side);
    if (gb_s >= quick.limit.gb_s * (1 - kSame)) continue;
    quick.limit.gb_s = gb_s;
    quick.limit.method = "min cut";
    quick.limit.side = side;
  }
  if (!quick.limit.side.empty()) quick.limit.arcs = network.arcs_across(quick.limit.side);
  if (hops > 0 && capacity / hops < quick.limit.gb_s * (1 - kSame)) {
    quick.limit = {.gb_s = capacity / hops, .method = "volume", .tight = false};
    for (std::size_t arc = 0; arc < load.size(); ++arc) {
      quick.limit.arcs.push_back(static_cast<int>(arc));
    }
    quick.limit.words = "no single cut, all links over shortest paths";
  }
  return quick;
}

}  // namespace

std::vector<Commodity> exchanged(const Network& network) {
  std::vector<Commodity> all;
  for (const int node : network.representatives) all.push_back(commodity_from(network, node));
  return all;
}

std::vector<std::vector<int>> arcs_by_source(const Network& network) {
  std::vector<std::vector<int>> out(at(network.num_nodes()));
  for (std::size_t arc = 0; arc < network.arcs.size(); ++arc) {
    out[at(network.arcs[arc].src)].push_back(static_cast<int>(arc));
  }
  return out;
}

std::vector<int> orbits_of_arcs(const Network& network) {
  std::vector<const std::vector<int>*> maps;
  if (network.repetition) {
    for (const Automorphism& generator : network.repetition->generators) {
      maps.push_back(&generator.links);
    }
  }
  return orbits(network.arcs.size(), maps);
}

ShortestPaths::ShortestPaths(const Network& network, const std::vector<std::vector<int>>& out,
                             int source)
    : distance(out.size(), -1), paths(out.size(), 0), order{source} {
  distance[at(source)] = 0;
  paths[at(source)] = 1;
  for (std::size_t head = 0; head < order.size(); ++head) {
    const auto node = at(order[head]);
    for (const int arc : out[node]) {
      const auto next = at(network.arcs[at(arc)].dst);
      if (distance[next] < 0) {
        distance[next] = distance[node] + 1;
        order.push_back(static_cast<int>(next));
      }
      if (distance[next] == distance[node] + 1) paths[next] += paths[node];
    }
  }
}

void ShortestPaths::spread(const Network& network, const std::vector<std::vector<int>>& out,
                           const Commodity& commodity, std::vector<double>& load) const {
  std::vector<double> beyond = commodity.demand;  // to this node or through it
  for (auto node = order.rbegin(); node != order.rend(); ++node) {
    const auto from = at(*node);
    for (const int arc : out[from]) {
      const auto next = at(network.arcs[at(arc)].dst);
      if (distance[next] != distance[from] + 1) continue;
      const double part = beyond[next] * paths[from] / paths[next];
      load[at(arc)] += part;
      beyond[from] += part;
    }
  }
}

double demand_across(const Network& network, const Side& side) {
  double inside = 0, outside = 0;
  for (const int node : network.terminals) {
    (side[at(node)] != 0 ? inside : outside) += network.weight(node);
  }
  return inside * outside;
}

Side reached_before(const Network& network, const std::vector<std::vector<int>>& out,
                    const std::vector<char>& full, int start) {
  Side side(at(network.num_nodes()), 0);
  side[at(start)] = 1;
  std::vector<int> queue{start};
  for (std::size_t head = 0; head < queue.size(); ++head) {
    for (const int arc : out[at(queue[head])]) {
      const int next = network.arcs[at(arc)].dst;
      if (full[at(arc)] != 0 || side[at(next)] != 0) continue;
      side[at(next)] = 1;
      queue.push_back(next);
    }
  }
  return side;
}

std::vector<Side> block_sides(const Network& network) {
  std::vector<Side> sides;
  if (!network.repetition) return sides;
  int ranks = network.repetition->cells.size();
  for (const int radix : network.repetition->cells.radices()) {
    for (const bool leaving : {true, false}) {
      const int outer = network.num_nodes();
      MaxFlow flow(outer + 2);
      for (const Network::Arc& arc : network.arcs) flow.add_arc(arc.src, arc.dst, arc.capacity);
      for (const int node : network.terminals) {
        const bool inside = network.ranks_on[at(node)].front() < ranks;
        if (inside == leaving) {
          flow.add_arc(outer, node, network.unlimited);
        } else {
          flow.add_arc(node, outer + 1, network.unlimited);
        }
      }
      (void)flow.solve(outer, outer + 1);
      Side side = flow.source_side();
      side.resize(at(outer));
      sides.push_back(std::move(side));
    }
    ranks *= radix;
  }
  return sides;
}

Rate exchange_rate(const Network& network) {
  const std::vector<Commodity> all = exchanged(network);
  QuickExchange quick = quick_exchange(network, all);
  if (quick.reached >= quick.limit.gb_s * (1 - kSame)) {
    quick.limit.tight = true;
    quick.limit.method += ", reached by shortest paths";
    return quick.limit;
  }
  const bool large = network.terminals.size() * network.arcs.size() > kMaxVariables;
  Rate limit = large ? priced_exchange_rate(network) : FlowProgram(network, all).solve(all);
  if (large && limit.gb_s >= quick.limit.gb_s * (1 - kSame)) limit = std::move(quick.limit);
  if (auto by_routes = routed_exchange_rate(network, limit.gb_s)) return *std::move(by_routes);
  if (large) limit.method += " (too large for the LP)";
  return limit;
}

Rate scatter_rate(const Network& network, int root_node) {
  Commodity commodity = commodity_from(network, root_node);
  // Ranks that share the root's node cost nothing, and only the root itself sends.
  for (double& demand : commodity.demand) demand /= network.weight(root_node);
  const std::vector<Commodity> all{std::move(commodity)};
  return FlowProgram(network, all).solve(all);
}

}  // namespace chorus::bounds
