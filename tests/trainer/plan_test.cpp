// The mapping changes no result, and the planner's choice is the best of what is feasible.
#include "report/plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "chorus/error.hpp"
#include "report/volume.hpp"
#include "world.hpp"

namespace trainer::testing {
namespace {

TEST(Mapping, ChangesNoBit) {
  Config config = small(4);
  config.layout = {.dp = 2, .tp = 2, .pp = 2, .zero = 1, .micro_batches = 2};
  const Outcome numbered = train(config, 4);
  config.layout.ranks = {6, 1, 4, 0, 2, 7, 3, 5};
  const Outcome turned = train(config, 4);
  EXPECT_EQ(turned.gradients, numbered.gradients);
  EXPECT_EQ(turned.values, numbered.values);
}

TEST(Mapping, GivesEveryRankOnePlace) {
  Config config = small();
  config.layout = {.dp = 2, .ranks = {0, 0}};
  EXPECT_THROW(check(config, 2), chorus::InputError);
  config.layout.ranks = {1};
  EXPECT_THROW(check(config, 2), chorus::InputError);
  config.layout.ranks = {1, 0};
  check(config, 2);
}

/// Rank r of `topology` sits in box r mod 2.
chorus::Topology in_turn(chorus::Topology topology) {
  const std::vector<int> nodes = topology.rank_nodes;
  for (std::size_t r = 0; r < nodes.size(); ++r) {
    topology.rank_nodes[r] = nodes[r % 2 * (nodes.size() / 2) + r / 2];
  }
  return topology;
}

TEST(Mapping, KeepsTensorParallelRanksInsideABox) {
  const chorus::Topology topology = in_turn(chorus::find_topology("2*dgx-a100"));
  Config config;
  config.model = preset("1.3B");
  config.layout = {.dp = 2, .tp = 8};
  const std::vector<int> ranks = mapped(config, topology);
  for (std::size_t place = 0; place < 16; ++place) {
    EXPECT_EQ(ranks[place] % 2, ranks[place / 8 * 8] % 2) << place;
  }
}

Machine boxes() {
  return {
      .topology = chorus::find_topology("2*dgx-a100"), .flops_per_s = 150e12, .memory_bytes = 0};
}

TEST(Plan, OfALargeModelShardsUntilItFits) {
  Config base;
  base.model = preset("13B");
  Machine machine = boxes();
  machine.memory_bytes = 80e9;
  const Plan plan = best_layouts(base, 64, machine, 5);
  ASSERT_EQ(plan.best.size(), 5U);
  EXPECT_GT(plan.too_large, 0);
  for (const Estimate& e : plan.best) {
    EXPECT_LE(e.memory_bytes, 80e9);
    EXPECT_EQ(e.config.layout.world_size(), 16);
    EXPECT_LE(e.config.layout.tp, 8);  // slices that leave the box are never among the best
    check(e.config, 16);
  }
  machine.memory_bytes = 1e9;
  EXPECT_THROW(best_layouts(base, 64, machine, 5), chorus::InputError);
}

TEST(Plan, IsTheBestOfItsEstimates) {
  Config base;
  base.model = preset("125M");
  const Machine machine = boxes();
  const Plan plan = best_layouts(base, 32, machine, 100);
  EXPECT_TRUE(std::ranges::is_sorted(plan.best, {}, &Estimate::seconds));
  for (const int tp : {1, 2, 4}) {
    for (const int pp : {1, 2}) {
      Config config = base;
      config.layout = {.dp = 16 / tp / pp, .tp = tp, .pp = pp, .micro_batches = 2};
      config.training.batch = 32 / config.layout.dp / 2;
      if (config.training.batch < 1) continue;
      EXPECT_LE(plan.best[0].seconds, estimate(config, machine, false).seconds * 1.001);
    }
  }
}

// Where messages cost nothing, a step is its operations and bubbles.
TEST(Plan, CountsOperationsAndBubblesExactly) {
  Config config;
  config.model = {.vocab = 4, .context = 64, .layers = 8, .width = 64, .heads = 4, .tied = false};
  config.layout = {.pp = 4, .micro_batches = 8};
  config.training.batch = 2;
  Machine machine{.topology = chorus::find_topology("ring:4"), .flops_per_s = 1e6};
  for (auto& link : machine.topology.links) link.alpha_s = link.beta_s_per_byte = 0;
  const Estimate e = estimate(config, machine, true);
  const double passes = 6.0 * 2 * 64 * 8 * (12.0 * 64 * 64 + 64 * 64) * 8 / 4 / 1e6;
  EXPECT_NEAR(e.compute_s, passes, 0.05 * passes);     // and the output, and the update
  EXPECT_NEAR(e.idle_s / e.compute_s, 3.0 / 8, 0.03);  // (p − 1) / m
  EXPECT_EQ(e.data_s + e.tensor_s + e.expert_s, 0);
  EXPECT_GT(e.memory_bytes, 0);
}

}  // namespace
}  // namespace trainer::testing
