// The strategies that every program has.
#include <algorithm>
#include <optional>
#include <utility>

#include "base/index.hpp"
#include "synth/exchange.hpp"
#include "synth/gateways.hpp"
#include "synth/greedy.hpp"
#include "synth/hierarchical.hpp"
#include "synth/packing.hpp"
#include "synth/plan.hpp"
#include "synth/repeated.hpp"
#include "synth/routing.hpp"
#include "synth/spread.hpp"

namespace chorus::synth {
namespace {

using enum CollectiveKind;

constexpr int kMostMatched = 128;  // ranks; beyond, minutes for all sizes
constexpr int kMostRouted = 300;   // ranks; n² blocks each find a way
constexpr int kMostPacked = 160;   // ranks; packing more takes minutes
constexpr int kMostPriced = 320;   // ranks; the same with one tree each and no cuts
constexpr int kMostSpanned = 512;  // ranks; a few dozen trees in all

std::vector<Schedule> one(std::optional<Schedule> schedule) {
  std::vector<Schedule> schedules;
  if (schedule) schedules.push_back(*std::move(schedule));
  return schedules;
}

std::vector<Schedule> repeated(const Task& task, const Effort& effort) {
  if (task.repeated == nullptr) return {};
  return repeated_schedules(*task.repeated, task.collective.kind, task.size_bytes, effort);
}

std::vector<Schedule> reduced(const Task& task, const Effort& effort) {
  return task.collective.kind == all_reduce ? repeated(task, effort) : std::vector<Schedule>{};
}

/// Measured rates are no multiples of each other: to pack them by cuts takes many trees and,
/// now and then, all the time there is.
bool is_measured(const Topology& topology) {
  return std::ranges::any_of(topology.links, [](const Topology::Link& link) {
    return link.provenance == Provenance::measured;
  });
}

/// Many ranks: cuts, and pieces that flow, take minutes. One tree from each rank, by prices.
std::vector<Schedule> packed_by_prices(const Task& task, const Effort& effort) {
  if (task.collective.kind != all_gather || task.network.world_size() > kMostPriced) return {};
  const auto packing =
      pack_trees(task.topology, Direction::forward, {.trees = 1, .by_prices_alone = true}, effort);
  if (!packing) return {};
  Spread spread{task.collective, task.network.world_size(), {}};
  for (std::size_t tree = 0; tree < packing->trees.size(); ++tree) {
    const std::vector<Rank>& parent = packing->trees[tree].parent;
    for (const Rank rank : from_root(packing->trees[tree])) {
      if (parent[at(rank)] < 0) continue;
      spread.hops.push_back({parent[at(rank)], rank, static_cast<ChunkId>(tree)});
    }
  }
  return {in_order("trees", task.network, spread, task.size_bytes / spread.num_chunks)};
}

std::vector<Schedule> packed(const Task& task, const Effort& effort) {
  const CollectiveKind kind = task.collective.kind;
  if (kind != all_gather && kind != broadcast) return {};
  if (task.network.world_size() > kMostPacked) return packed_by_prices(task, effort);
  return one(
      trees(task.topology, task.collective, task.size_bytes, effort, is_measured(task.topology)));
}

/// What combines: all_reduce over trees of its own, and the other two where their mirror images
/// lose by the order in which contributions come.
std::vector<Schedule> combined(const Task& task, const Effort& effort) {
  const CollectiveKind kind = task.collective.kind;
  const int most = kind == all_reduce ? kMostSpanned : kMostPacked;
  if (kind != all_reduce && kind != reduce_scatter && kind != reduce) return {};
  if (task.network.world_size() > most) return {};
  return one(
      trees(task.topology, task.collective, task.size_bytes, effort, is_measured(task.topology)));
}

std::vector<Schedule> exchanged(const Task& task, const Effort& effort) {
  if (task.network.world_size() > kMostRouted) return {};
  return one(routed(task.network, task.collective, task.size_bytes, effort));
}

std::vector<Schedule> reduced_over_gateways(const Task& task, const Effort& effort) {
  return task.collective.kind == all_reduce ? gateways(task, effort) : std::vector<Schedule>{};
}

std::vector<Schedule> matched(const Task& task, const Effort& effort) {
  if (task.network.world_size() > kMostMatched || task.collective.kind == barrier) return {};
  return one(greedy(task.network, task.collective, task.size_bytes, effort));
}

}  // namespace

std::vector<Strategy> built_in_strategies() {
  return {
      {.name = "hierarchical", .make = hierarchical},
      {.name = "exchange", .make = exchanging, .combines = true, .every_size = false},
      {.name = "repeated", .make = repeated, .combines = false, .every_size = true, .folds = true},
      {.name = "repeated", .make = reduced, .combines = true, .every_size = false, .folds = true},
      {.name = "gateways", .make = gateways},
      {.name = "gateways", .make = reduced_over_gateways, .combines = true},
      {.name = "trees", .make = packed},
      {.name = "trees", .make = combined, .combines = true},
      {.name = "routed", .make = exchanged},
      {.name = "greedy", .make = matched},
  };
}

}  // namespace chorus::synth
