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

// Ranks; and ranks times edges, of what goes from everybody to everybody: of more it gains 1.2 % at
// most, and takes long.
constexpr int kMostMatched = 128;
constexpr double kMostMatchedLooks = 40e3;
// Sources times ranks times edges that leave each: what the ways of all blocks look at. Between the
// two that takes half a minute: only where all else is far from the limit.
constexpr double kManyRoutedLooks = 27e6, kMostRoutedLooks = 100e6;
constexpr int kMostPacked = 1024;  // ranks
// Ranks for which all edges are considered even where they are many: trees over fewer are found
// sooner, and of many ranks they are the better ones.
constexpr int kMostPackedWide = 160;
constexpr int kManyEdges = 24, kSomeEdges = 12, kFewEdges = 8;  // from each rank
constexpr int kMostPackedToSome = 40;  // ranks: of more they gain 2 % now and then, no more
// Edges: cuts find the fewest trees that reach the limit, and of more take too long.
constexpr std::size_t kMostCutEdges = 1000;
// Ranks times edges: what a tree of an all_reduce looks at. Over few edges those of 590 ranks take
// twice as long as the limit (a mix of three kinds of boxes).
constexpr double kMostSpannedLooks = 260e6;

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

/// The packings of the wirings that a plan has to do with: as it is, and turned round.
class KnownPackings {
 public:
  explicit KnownPackings(const PackingOptions& options) : options_(options) {}

  [[nodiscard]] bool serve(const Task& task) const {
    return options_.by_prices_alone ? prices_serve(task) : cuts_serve(task);
  }

  Packings& of(const Topology& topology) {
    const auto known = std::ranges::find_if(
        all_, [&](const auto& packings) { return packings->topology() == topology; });
    if (known != all_.end()) return **known;
    if (all_.size() == 2) all_.erase(all_.begin());
    return *all_.emplace_back(std::make_unique<Packings>(topology, options_));
  }

 private:
  [[nodiscard]] static bool cuts_serve(const Task& task) {
    return !task.network.folded() && task.network.edges().size() <= kMostCutEdges &&
           !is_measured(task.topology);
  }

  [[nodiscard]] bool prices_serve(const Task& task) const {
    const std::optional<int> few = options_.edges_per_rank;
    if (task.network.folded()) return !few;
    const int n = task.network.world_size();
    const int width = widest(task.network);
    const bool reduces_all = task.collective.kind == all_reduce;
    const bool over_all_edges = n <= kMostPackedWide || width <= kManyEdges ||
                                (reduces_all && looks(task.network) <= kMostSpannedLooks);
    if (!few) return over_all_edges;
    if (width <= *few) return false;  // the same as over all edges
    // Spanning trees of many ranks are shallower over all edges.
    if (reduces_all && over_all_edges && n > kMostPackedWide) return false;
    return *few == kFewEdges || n <= kMostPackedToSome;
  }

  PackingOptions options_;
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

/// Trees that combine.
std::vector<Schedule> over_trees(const Task& task, const Budget& budget, KnownPackings& known) {
  if (task.network.world_size() > kMostPacked) return {};
  return one(trees(known.of(task.topology), task.collective, task.size_bytes, budget));
}

/// Sums, where the mirror images of what copies lose by the order in which contributions come.
std::vector<Schedule> summed(const Task& task, const Budget& budget, KnownPackings& known) {
  const CollectiveKind kind = task.collective.kind;
  if ((kind != reduce_scatter && kind != reduce) || task.network.folded()) return {};
  return known.serve(task) ? over_trees(task, budget, known) : std::vector<Schedule>{};
}

/// All_reduce, over trees of its own. These are packed by prices alone.
std::vector<Schedule> all_reduced(const Task& task, const Budget& budget, KnownPackings& known) {
  if (task.collective.kind != all_reduce || !known.serve(task)) return {};
  if (!task.network.folded()) return over_trees(task, budget, known);
  if (!symmetric(task.topology)) return {};
  return repeated_all_reduces(task.network, task.size_bytes, budget);
}

/// From one root to so many ranks, over so many edges, that trees which grow from it take too long.
std::vector<Schedule> spread_to_many(const Task& task, const Budget& budget, KnownPackings& known) {
  if (task.collective.kind != broadcast || task.network.folded()) return {};
  if (known.serve(task) || looks(task.network) > kMostSpannedLooks) return {};
  return one(broadcast_over_spanning_trees(known.of(task.topology), task.collective.root,
                                           task.size_bytes, budget));
}

/// For networks to which routing pays more than so many looks, and no more than so many.
auto routing(double least, double most) {
  return [least, most](const Task& task, const Budget& budget) -> std::vector<Schedule> {
    const double all = looks(task.network);
    if (all <= least || all > most) return {};
    return one(routed(task.network, task.collective, task.size_bytes, budget));
  };
}

std::vector<Schedule> reduced_over_gateways(const Task& task, const Budget& budget) {
  return task.collective.kind == all_reduce ? gateways(task, budget) : std::vector<Schedule>{};
}

std::vector<Schedule> matched(const Task& task, const Budget& budget) {
  const CollectiveKind kind = task.collective.kind;
  const bool by_all = kind == all_gather || kind == all_to_all;
  if (kind == barrier) return {};
  if (task.network.world_size() > kMostMatched) return {};
  if (by_all && looks(task.network) > kMostMatchedLooks) return {};
  return one(greedy(task.network, task.collective, task.size_bytes, budget));
}

}  // namespace

std::vector<Strategy> built_in_strategies() {
  const auto packings = [](const PackingOptions& options) {
    return std::make_shared<KnownPackings>(options);
  };
  const auto by_prices = packings({.by_prices_alone = true});
  const auto to_many = packings({.by_prices_alone = true, .edges_per_rank = kManyEdges});
  const auto to_some = packings({.by_prices_alone = true, .edges_per_rank = kSomeEdges});
  const auto to_few = packings({.by_prices_alone = true, .edges_per_rank = kFewEdges});
  const auto by_cuts = packings({});
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
      {.name = "trees", .make = with(packed, by_prices), .folds = true, .leads = true},
      {.name = "trees", .make = with(summed, by_prices), .combines = true, .leads = true},
      {.name = "trees",
       .make = with(all_reduced, by_prices),
       .combines = true,
       .folds = true,
       .timed = true},
      {.name = "trees", .make = with(spread_to_many, by_prices), .leads = true},
      {.name = "trees", .make = with(packed, to_few), .leads = true},
      {.name = "trees", .make = with(summed, to_few), .combines = true, .leads = true},
      {.name = "trees", .make = with(all_reduced, to_few), .combines = true, .timed = true},
      {.name = "trees", .make = with(packed, to_some)},
      {.name = "trees", .make = with(summed, to_some), .combines = true},
      {.name = "trees", .make = with(packed, to_many)},
      {.name = "trees", .make = with(packed, by_cuts)},
      {.name = "routed", .make = routing(0, kManyRoutedLooks), .folds = true, .leads = true},
      {.name = "routed", .make = routing(kManyRoutedLooks, kMostRoutedLooks)},
      {.name = "greedy", .make = matched},
  };
}

}  // namespace chorus::synth
