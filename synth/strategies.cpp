// The strategies that every program has.
#include <algorithm>
#include <optional>
#include <utility>

#include "synth/exchange.hpp"
#include "synth/gateways.hpp"
#include "synth/greedy.hpp"
#include "synth/hierarchical.hpp"
#include "synth/packing.hpp"
#include "synth/plan.hpp"
#include "synth/repeated.hpp"
#include "synth/routing.hpp"

namespace chorus::synth {
namespace {

using enum CollectiveKind;

constexpr int kMostMatched = 128;  // ranks; beyond, minutes for all sizes
constexpr int kMostRouted = 300;   // ranks; n² blocks each find a way
constexpr int kMostPacked = 160;   // ranks; packing more takes minutes

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

std::vector<Schedule> packed(const Task& task, const Effort& effort) {
  const CollectiveKind kind = task.collective.kind;
  if (kind != all_gather && kind != broadcast) return {};
  if (task.network.world_size() > kMostPacked) return {};
  return one(trees(task.topology, task.collective, task.size_bytes, effort, Decomposition::trees,
                   is_measured(task.topology)));
}

std::vector<Schedule> blink(const Task& task, const Effort& effort) {
  if (task.collective.kind != all_reduce || task.network.world_size() > kMostPacked) return {};
  return one(trees(task.topology, task.collective, task.size_bytes, effort, Decomposition::blink,
                   is_measured(task.topology)));
}

std::vector<Schedule> exchanged(const Task& task, const Effort& effort) {
  if (task.network.world_size() > kMostRouted) return {};
  return one(routed(task.network, task.collective, task.size_bytes, effort));
}

std::vector<Schedule> over_one_root(const Task& task, const Effort& effort) {
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
      {.name = "gateways", .make = over_one_root, .combines = true},
      {.name = "trees", .make = packed},
      {.name = "routed", .make = exchanged},
      {.name = "greedy", .make = matched},
      {.name = "blink", .make = blink, .combines = true},
  };
}

}  // namespace chorus::synth
