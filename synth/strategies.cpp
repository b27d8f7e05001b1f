// The strategies that every program has.
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "base/index.hpp"
#include "synth/composing/gateways.hpp"
#include "synth/composing/hierarchical.hpp"
#include "synth/composing/repeated_trees.hpp"
#include "synth/greedy.hpp"
#include "synth/multicast_routing.hpp"
#include "synth/packing.hpp"
#include "synth/packing/flowing.hpp"
#include "synth/packing/packings.hpp"
#include "synth/plan.hpp"
#include "synth/routing.hpp"

namespace chorus::synth {
namespace {

using enum CollectiveKind;

constexpr int kMostMatched = 128;  // ranks; beyond, minutes for all sizes
constexpr int kMostRouted = 300;   // ranks; n² blocks each find a way
constexpr int kMostCut = 64;       // ranks; the maximum flows of more take minutes
constexpr int kMostPacked = 160;   // ranks; packing more than one tree from each takes minutes
constexpr int kMostPriced = 1024;  // ranks; packing one
constexpr int kEdgesPerRank = 40;  // of more the same time finds worse trees, of 20 sometimes too
constexpr double kMostFlowing = 400'000;  // transfers of such trees that are ordered by flowing
// Ranks times edges: what a tree of an all_reduce looks at.
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

/// Many ranks: one tree from each, by prices, the same for all sizes.
std::vector<Schedule> one_from_each(const Task& task, const Budget& budget) {
  const int n = task.network.world_size();
  std::vector<Schedule> found;
  if (task.collective.kind != all_gather || n <= kMostPacked || n > kMostPriced) return found;
  const PackingOptions options{
      .trees = 1, .by_prices_alone = true, .edges_per_rank = kEdgesPerRank};
  const auto packing = pack_trees(task.topology, Direction::forward, options, budget);
  if (!packing) return found;
  const Routes routes(task.topology);
  for (const int pieces : {1, 4}) {
    if (static_cast<double>(n) * (n - 1) * pieces > kMostFlowing) break;
    const TreeFlow flow{task.collective, nullptr, &*packing, pieces};
    auto ordered = flowing_order("trees", task.topology, routes, flow, {}, kOrderedFor, budget);
    if (ordered) found.push_back(std::move(ordered->schedule));
  }
  if (!found.empty()) return found;
  MulticastRouting multicast{task.collective, n, {}};
  for (std::size_t tree = 0; tree < packing->trees.size(); ++tree) {
    const std::vector<Rank>& parent = packing->trees[tree].parent;
    for (const Rank rank : from_root(packing->trees[tree])) {
      if (parent[at(rank)] < 0) continue;
      multicast.hops.push_back({parent[at(rank)], rank, static_cast<ChunkId>(tree)});
    }
  }
  return one(in_order("trees", task.network, multicast, kOrderedFor / n));
}

/// The packings of the wirings that a plan has to do with: as it is, and turned round. By prices,
/// or by cuts, whose trees are shallower, and now and then better.
class KnownPackings {
 public:
  explicit KnownPackings(bool by_prices_alone) : by_prices_alone_(by_prices_alone) {}

  /// Trees of an all_reduce are packed by prices alone.
  [[nodiscard]] bool serve(const Task& task) const {
    return by_prices_alone_ || (!task.network.folded() && task.network.world_size() <= kMostCut &&
                                task.collective.kind != all_reduce && !is_measured(task.topology));
  }

  Packings& of(const Topology& topology) {
    const auto known = std::ranges::find_if(
        all_, [&](const auto& packings) { return packings->topology() == topology; });
    if (known != all_.end()) return **known;
    if (all_.size() == 2) all_.erase(all_.begin());
    return *all_.emplace_back(std::make_unique<Packings>(topology, by_prices_alone_));
  }

 private:
  bool by_prices_alone_;
  std::vector<std::unique_ptr<Packings>> all_;
};

/// What copies.
std::vector<Schedule> packed(const Task& task, const Budget& budget, KnownPackings& known) {
  const CollectiveKind kind = task.collective.kind;
  if ((kind != all_gather && kind != broadcast) || !known.serve(task)) return {};
  if (task.network.folded()) {
    return kind == all_gather ? repeated_trees(task.network, task.size_bytes, budget)
                              : std::vector<Schedule>{};
  }
  if (task.network.world_size() > kMostPacked) return {};
  return one(trees(known.of(task.topology), task.collective, task.size_bytes, budget));
}

/// What combines: all_reduce over trees of its own, and the other two where their mirror images
/// lose by the order in which contributions come.
std::vector<Schedule> combined(const Task& task, const Budget& budget, KnownPackings& known) {
  const CollectiveKind kind = task.collective.kind;
  if (kind != all_reduce && kind != reduce_scatter && kind != reduce) return {};
  if (!known.serve(task)) return {};
  if (task.network.folded()) {
    const bool made = kind == all_reduce && symmetric(task.topology);
    return made ? repeated_all_reduces(task.network, task.size_bytes, budget)
                : std::vector<Schedule>{};
  }
  if (task.network.world_size() > (kind == all_reduce ? kMostPriced : kMostPacked)) return {};
  if (looks(task.network) > kMostSpannedLooks) return {};
  return one(trees(known.of(task.topology), task.collective, task.size_bytes, budget));
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
  const auto by_prices = std::make_shared<KnownPackings>(true);
  const auto by_cuts = std::make_shared<KnownPackings>(false);
  const auto with = [](auto make, const std::shared_ptr<KnownPackings>& known) {
    return [make, known](const Task& task, const Budget& budget) {
      return make(task, budget, *known);
    };
  };
  return {
      {.name = "hierarchical", .make = hierarchical, .folds = true},
      {.name = "hierarchical",
       .make = exchanging,
       .combines = true,
       .every_size = false,
       .folds = true},
      {.name = "gateways", .make = gateways},
      {.name = "gateways", .make = reduced_over_gateways, .combines = true},
      {.name = "trees", .make = with(packed, by_prices), .folds = true},
      {.name = "trees", .make = with(combined, by_prices), .combines = true, .folds = true},
      {.name = "trees", .make = with(packed, by_cuts)},
      {.name = "trees", .make = with(combined, by_cuts), .combines = true},
      {.name = "trees", .make = one_from_each, .every_size = false},
      {.name = "routed", .make = exchanged},
      {.name = "greedy", .make = matched},
  };
}

}  // namespace chorus::synth
