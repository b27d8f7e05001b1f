// Rates of spreading: all-gather and broadcast, and reduce-scatter and reduce, their mirror images.

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "base/index.hpp"
#include "model/bounds/carry.hpp"
#include "model/bounds/flow.hpp"
#include "model/bounds/network.hpp"
#include "model/bounds/partitions.hpp"

namespace chorus::bounds {
namespace {

double sum_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

/// w(S), the sources inside a set of nodes.
double inside(const std::vector<double>& sources, const Side& side) {
  double sum = 0;
  for (std::size_t node = 0; node < side.size(); ++node) {
    if (side[node] != 0) sum += sources[node];
  }
  return sum;
}

Side all_but(const Network& network, int node) {
  Side side(at(network.num_nodes()), 1);
  side[at(node)] = 0;
  return side;
}

/// Terminals that limit as much as all do: the representatives, if all sources are alike.
const std::vector<int>& alike(const Network& network, const std::vector<double>& sources) {
  const bool all_alike =
      std::all_of(network.terminals.begin(), network.terminals.end(),
                  [&](int node) { return sources[at(node)] == network.weight(node); });
  return all_alike ? network.representatives : network.terminals;
}

Rate rate_of_least_cut(const Network& network, const std::vector<double>& sources) {
  LeastRatio least = least_ratio(network.arcs, sources, alike(network, sources),
                                 [&](const Side& side) { return network.crossing(side); });
  return {.gb_s = least.ratio, .method = "max-flow", .side = std::move(least.side)};
}

/// spread_rate() where port groups or lopsided switches couple the links.
Rate spread_by_cutting_planes(const Network& network, const std::vector<double>& sources) {
  CarryProgram program(network);
  for (const int node : network.terminals) {
    const Side side = all_but(network, node);
    if (inside(sources, side) > 0) program.require_cut(side, inside(sources, side));
  }
  FedFlow flow(network, sources);
  const double total = sum_of(sources);
  Rate rate{.method = "max-flow and LP", .tight = false};
  for (int round = 0; round < kMaxRounds && !rate.tight; ++round) {
    program.solve();
    rate.gb_s = program.rate();
    if (program.hardly_falls()) break;
    flow.set_rate(rate.gb_s);
    for (std::size_t arc = 0; arc < network.arcs.size(); ++arc) {
      flow.set_arc(static_cast<int>(arc), program.carried(static_cast<int>(arc)));
    }
    std::set<Side> wanting;
    for (const int node : network.terminals) {
      if (flow.flow_to(node) < total * rate.gb_s * (1 - 1e-7)) wanting.insert(flow.side());
    }
    for (const Side& side : wanting) program.require_cut(side, inside(sources, side));
    rate.tight = wanting.empty();
  }
  program.explain(rate);
  return rate;
}

/// The images of `sets` under every move, unless those are too many to keep.
void add_images(const Network& network, std::vector<Side>& sets) {
  constexpr std::size_t kMost = 64'000'000;  // bytes
  std::set<Side> known(sets.begin(), sets.end());
  for (std::size_t i = 0; i < sets.size(); ++i) {
    for (const Automorphism& generator : network.repetition->generators) {
      Side image(sets[i].size());
      for (std::size_t node = 0; node < image.size(); ++node) {
        image[at(network.moved(static_cast<int>(node), generator))] = sets[i][node];
      }
      if (!known.insert(image).second) continue;
      sets.push_back(std::move(image));
      if (sets.size() * sets[i].size() <= kMost) continue;
      sets.clear();  // part of them would be no partition
      return;
    }
  }
}

}  // namespace

std::vector<Side> tight_sets(const Network& network) {
  std::vector<double> shares(at(network.num_nodes()), 0);
  for (const int node : network.terminals) shares[at(node)] = network.weight(node);
  const double slightly_more = rate_of_least_cut(network, shares).gb_s * (1 + 1e-6);
  FedFlow flow(network, shares);
  flow.set_rate(slightly_more);
  std::vector<Side> sets;
  for (const int node : network.representatives) {
    if (flow.flow_to(node) >= sum_of(shares) * slightly_more * (1 - 1e-9)) continue;
    sets.push_back(flow.far_side());
  }
  if (network.repetition) add_images(network, sets);
  return sets;
}

Rate spread_rate(const Network& network, const std::vector<double>& sources) {
  Rate rate = network.plain() ? rate_of_least_cut(network, sources)
                              : spread_by_cutting_planes(network, sources);
  if (rate.arcs.empty() && !rate.side.empty()) rate.arcs = network.arcs_across(rate.side);
  return rate;
}

}  // namespace chorus::bounds
