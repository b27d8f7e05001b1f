// Wirings that repeat themselves: found, folded, and timed as the whole would be.
#include "synth/repeated.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "model/bounds.hpp"
#include "model/cost.hpp"
#include "model/symmetry.hpp"
#include "synth/plan.hpp"
#include "synth/spread.hpp"
#include "topology/sources.hpp"

namespace chorus::synth {
namespace {

using enum CollectiveKind;

TEST(Repetition, IsFoundInClustersAndNowhereElse) {
  const auto radices = [](const std::string& name) {
    return repetition_of(topology_from_name(name)).cells.radices();
  };
  EXPECT_EQ(radices("16*dgx-h100,leaf=4,over=2"), (std::vector<int>{8, 4, 4}));
  EXPECT_EQ(radices("4*dgx-a100"), (std::vector<int>{8, 4}));
  EXPECT_EQ(radices("3*ndv2"),
            (std::vector<int>{3}));  // no turn maps the mesh in a box onto itself
  EXPECT_EQ(radices("dgx-h100"), (std::vector<int>{8}));
  EXPECT_EQ(radices("dgx1"), (std::vector<int>{}));
  Topology uneven = topology_from_name("4*dgx-a100");
  uneven.links.back().beta_s_per_byte *= 1.01;
  EXPECT_EQ(repetition_of(uneven).cells.count(), 1);
}

TEST(Repetition, IsMadeOfMapsThatKeepEveryLink) {
  const Topology topology = topology_from_name("6*dgx-h100,leaf=3,over=2");
  const Repetition repetition = repetition_of(topology);
  ASSERT_EQ(repetition.generators.size(), 3U);
  for (const Automorphism& map : repetition.generators) {
    for (std::size_t link = 0; link < topology.links.size(); ++link) {
      const Topology::Link& from = topology.links[link];
      const Topology::Link& to = topology.links[static_cast<std::size_t>(map.links[link])];
      EXPECT_EQ(map.nodes[static_cast<std::size_t>(from.src)], to.src);
      EXPECT_EQ(map.nodes[static_cast<std::size_t>(from.dst)], to.dst);
      EXPECT_EQ(from.alpha_s, to.alpha_s);
      EXPECT_EQ(from.beta_s_per_byte, to.beta_s_per_byte);
    }
  }
}

TEST(Repeated, SchedulesAreRightAndTimedAsTheWholeIs) {
  for (const std::string name : {"8*dgx-h100,leaf=4,over=2", "4*dgx-a100", "3*ndv2", "2*dgx2"}) {
    const Topology topology = topology_from_name(name);
    const auto network = RepeatedNetwork::of(topology);
    ASSERT_TRUE(network) << name;
    const Routes routes(topology);
    for (const CollectiveKind kind : {all_gather, all_to_all, all_reduce}) {
      for (const double size : {1024.0, 1048576.0, 1073741824.0}) {
        double best_s = 1e9;
        double simulated_s = 1e9;
        for (const Schedule& schedule : repeated_schedules(*network, kind, size, {})) {
          ASSERT_EQ(first_fault(schedule), std::nullopt) << name;
          const double seconds = network->simulated_seconds(schedule, size).value_or(0);
          if (seconds >= best_s) continue;
          best_s = seconds;
          if (num_transfers(schedule) > 20'000) continue;
          const Schedule whole = expanded(schedule);
          ASSERT_EQ(first_fault(whole), std::nullopt) << name;
          simulated_s = simulate(whole, topology, routes, size).seconds;
          // Chunks of several cells that cross an edge in one step go in another order there.
          EXPECT_NEAR(simulated_s / seconds, 1, kind == all_reduce ? 0.2 : 0.02)
              << name << ' ' << schedule.name << ' ' << schedule.num_chunks << " of " << size;
          if (kind != all_gather) continue;
          const Schedule turned = mirrored(schedule);
          ASSERT_EQ(first_fault(turned), std::nullopt) << name;
          ASSERT_EQ(first_fault(all_reduce_of(turned, schedule)), std::nullopt) << name;
        }
      }
    }
  }
}

TEST(Repeated, APlanForAThousandRanksIsNearItsLimitsAndProved) {
  const Topology topology = topology_from_name("128*dgx-h100,leaf=16,over=2");
  PlanOptions options;
  options.kinds = {all_reduce, all_gather, reduce_scatter, all_to_all};
  options.sizes = {1 << 10, 1 << 20, 1 << 30};
  const Planned planned = make_plan(topology, options, built_in_strategies(), {});
  for (const Choice& choice : planned.choices) {
    EXPECT_EQ(first_fault(choice.schedule), std::nullopt);
    const Bound bound = lower_bound(topology, {choice.kind, 0});
    const double limit_s =
        bound.latency_s + bound.seconds_per_byte * static_cast<double>(choice.size_bytes);
    RecordProperty(std::string(choice.schedule.name), std::to_string(choice.seconds / limit_s));
    if (choice.size_bytes == 1 << 30) {
      EXPECT_LE(choice.seconds, 1.15 * limit_s);
    }
  }
}

}  // namespace
}  // namespace chorus::synth
