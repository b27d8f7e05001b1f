// The strategies that every program has.
#include <algorithm>
#include <optional>
#include <utility>

#include "base/index.hpp"
#include "synth/composing/gateways.hpp"
#include "synth/composing/hierarchical.hpp"
#include "synth/composing/repeated_trees.hpp"
#include "synth/greedy.hpp"
#include "synth/multicast_routing.hpp"
#include "synth/packing.hpp"
#include "synth/plan.hpp"
#include "synth/routing.hpp"

namespace chorus::synth {
namespace {

using enum CollectiveKind;

constexpr int kMostMatched = 128;  // ranks; beyond, minutes for all sizes
constexpr int kMostRouted = 300;   // ranks; n² blocks each find a way
constexpr int kMostPacked = 160;   // ranks; packing more takes minutes
constexpr int kMostPriced = 1024;  // ranks; the same with one tree each and no cuts
// Ranks times edges: what a round of prices looks at. So many have 320 and 512 ranks behind
// switches, where every pair has an edge, and wirings of cables up to the number above.
constexpr double kMostPricedLooks = 35e6;
constexpr double kMostSpannedLooks = 135e6;
constexpr double kOrderedFor = 1 << 30;  // bytes: where trees of many ranks are at their best

std::vector<Schedule> one(std::optional<Schedule> schedule) {
  std::vector<Schedule> schedules;
  if (schedule) schedules.push_back(*std::move(schedule));
  return schedules;
}

/// Measured rates are no multiples of each other: to pack them by cuts takes many trees and,
/// now and then, all the time there is.
bool is_measured(const Topology& topology) {
  return std::ranges::any_of(topology.links, [](const Topology::Link& link) {
    return link.provenance == Provenance::measured;
  });
}

double looks(const Network& network) {
  return static_cast<double>(network.edges().size()) * network.world_size();
}

/// Many ranks: cuts, and pieces that flow, take minutes. One tree from each rank, by prices, the
/// same for all sizes.
std::vector<Schedule> packed_by_prices(const Task& task, const Budget& budget) {
  const int n = task.network.world_size();
  if (task.collective.kind != all_gather || n <= kMostPacked || n > kMostPriced) return {};
  if (looks(task.network) > kMostPricedLooks) return {};
  const auto packing =
      pack_trees(task.topology, Direction::forward, {.trees = 1, .by_prices_alone = true}, budget);
  if (!packing) return {};
  MulticastRouting multicast{task.collective, n, {}};
  for (std::size_t tree = 0; tree < packing->trees.size(); ++tree) {
    const std::vector<Rank>& parent = packing->trees[tree].parent;
    for (const Rank rank : from_root(packing->trees[tree])) {
      if (parent[at(rank)] < 0) continue;
      multicast.hops.push_back({parent[at(rank)], rank, static_cast<ChunkId>(tree)});
    }
  }
  return {in_order("trees", task.network, multicast, kOrderedFor / n)};
}

std::vector<Schedule> packed(const Task& task, const Budget& budget) {
  const CollectiveKind kind = task.collective.kind;
  if (kind != all_gather && kind != broadcast) return {};
  if (task.network.folded()) {
    return kind == all_gather ? repeated_trees(task.network, task.size_bytes, budget)
                              : std::vector<Schedule>{};
  }
  if (task.network.world_size() > kMostPacked) return {};
  return one(
      trees(task.topology, task.collective, task.size_bytes, budget, is_measured(task.topology)));
}

/// What combines: all_reduce over trees of its own, and the other two where their mirror images
/// lose by the order in which contributions come.
std::vector<Schedule> combined(const Task& task, const Budget& budget) {
  const CollectiveKind kind = task.collective.kind;
  if (kind != all_reduce && kind != reduce_scatter && kind != reduce) return {};
  if (task.network.world_size() > (kind == all_reduce ? kMostPriced : kMostPacked)) return {};
  if (looks(task.network) > kMostSpannedLooks) return {};
  return one(
      trees(task.topology, task.collective, task.size_bytes, budget, is_measured(task.topology)));
}

std::vector<Schedule> exchanged(const Task& task, const Budget& budget) {
  if (task.network.world_size() > kMostRouted) return {};
  return one(routed(task.network, task.collective, task.size_bytes, budget));
}

std::vector<Schedule> reduced_over_gateways(const Task& task, const Budget& budget) {
  return task.collective.kind == all_reduce ? gateways(task, budget) : std::vector<Schedule>{};
}

std::vector<Schedule> matched(const Task& task, const Budget& budget) {
  if (task.network.world_size() > kMostMatched || task.collective.kind == barrier) return {};
  return one(greedy(task.network, task.collective, task.size_bytes, budget));
}

}  // namespace

std::vector<Strategy> built_in_strategies() {
  return {
      {.name = "hierarchical", .make = hierarchical, .folds = true},
      {.name = "hierarchical",
       .make = exchanging,
       .combines = true,
       .every_size = false,
       .folds = true},
      {.name = "gateways", .make = gateways},
      {.name = "gateways", .make = reduced_over_gateways, .combines = true},
      {.name = "trees", .make = packed, .folds = true},
      {.name = "trees", .make = packed_by_prices, .every_size = false},
      {.name = "trees", .make = combined, .combines = true},
      {.name = "routed", .make = exchanged},
      {.name = "greedy", .make = matched},
  };
}

}  // namespace chorus::synth
