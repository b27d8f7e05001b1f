#include "synth/plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "chorus/error.hpp"
#include "model/bounds/bounds.hpp"
#include "model/json/json.hpp"
#include "model/schedule/contract.hpp"
#include "runtime/selection/strategies.hpp"
#include "synth/composing/hierarchical.hpp"
#include "synth/composing/levels.hpp"
#include "synth/routing.hpp"
#include "topologies.hpp"
#include "topology/discover/sources.hpp"

namespace chorus::synth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using enum CollectiveKind;

std::vector<Strategy> all() {
  std::vector<Strategy> strategies = {classic_strategy()};
  for (Strategy& strategy : built_in_strategies()) strategies.push_back(std::move(strategy));
  return strategies;
}

PlanOptions four_collectives() {
  PlanOptions options;
  options.kinds = {all_reduce, all_gather, reduce_scatter, all_to_all};
  options.sizes = {1 << 10, 1 << 20, 1 << 30};
  return options;
}

TEST(Levels, FollowTheGapsInLatency) {
  EXPECT_THAT(Levels(Network(topology_from_name("dgx-a100"))).sizes(), ElementsAre(8));
  EXPECT_THAT(Levels(Network(topology_from_name("4*dgx-h100"))).sizes(), ElementsAre(8, 4));
  EXPECT_THAT(Levels(Network(topology_from_name("torus:4x4"))).sizes(), ElementsAre(16));
}

TEST(Levels, FindTheHostsInAnyOrderOfRanks) {
  Topology topology = topology_from_name("2*dgx-a100");
  std::vector<int> shuffled;
  for (int i = 0; i < 8; ++i) {
    shuffled.push_back(topology.rank_nodes[static_cast<std::size_t>(8 + i)]);
    shuffled.push_back(topology.rank_nodes[static_cast<std::size_t>(i)]);
  }
  topology.rank_nodes = shuffled;
  const Levels levels{Network(topology)};
  EXPECT_THAT(levels.sizes(), ElementsAre(8, 2));
  EXPECT_THAT(levels.inner_part(0), ElementsAre(0, 2, 4, 6, 8, 10, 12, 14));
  EXPECT_EQ(levels.with_digit(0, 1, 1), 1);
}

TEST(Hierarchical, EveryShapeDeliversEverything) {
  const Network network(topology_from_name("3*dgx1"));
  for (const Shape inner : {Shape::star, Shape::ring}) {
    for (const Shape outer : {Shape::star, Shape::ring}) {
      for (const CollectiveKind kind : {all_gather, broadcast}) {
        const auto spread = level_by_level(network, {kind, 0}, {{1, 2, outer}, {0, 1, inner}}, 2);
        ASSERT_TRUE(spread);
        const Schedule schedule = in_order("levels", network, *spread, 1e6);
        EXPECT_EQ(first_fault(schedule), std::nullopt) << name_of(kind);
      }
    }
  }
}

/// Schedules of `kinds`, and of no other, that are right and together serve every size once.
void expect_whole(const Plan& plan, const std::vector<CollectiveKind>& kinds) {
  std::map<CollectiveKind, std::uint64_t> next;
  for (const PlanEntry& entry : plan.entries) {
    EXPECT_EQ(first_fault(entry.schedule), std::nullopt);
    const CollectiveKind kind = entry.schedule.collective.kind;
    EXPECT_EQ(entry.min_bytes, next[kind]);
    next[kind] = entry.max_bytes + 1;
  }
  EXPECT_EQ(next.size(), kinds.size());
  for (const CollectiveKind kind : kinds) {
    ASSERT_TRUE(next.contains(kind)) << name_of(kind);
    EXPECT_EQ(next[kind], 0U) << name_of(kind) << " has no schedule for the largest sizes";
  }
}

// The schedules of a plan are right, cover every size once, and are near the limit at 1 GB.
class PlanFor : public testing::TestWithParam<const char*> {};

TEST_P(PlanFor, IsProvedCoversEverySizeAndIsNearTheLimit) {
  const Topology topology = topology_from_name(GetParam());
  const PlanOptions options = four_collectives();
  const Planned planned = make_plan(topology, options, all(), {});
  EXPECT_TRUE(planned.complete);
  EXPECT_EQ(planned.plan.topology_fingerprint, fingerprint(topology));
  expect_whole(planned.plan, options.kinds);
  for (const Choice& choice : planned.choices) {
    const Bound bound = lower_bound(topology, {choice.kind, 0});
    const auto size = static_cast<double>(choice.size_bytes);
    const double limit = bound.seconds(size);
    EXPECT_GE(choice.seconds, limit * (1 - 1e-9)) << name_of(choice.kind);
    if (choice.size_bytes == 1 << 30) {
      EXPECT_LE(choice.seconds, 1.2 * limit) << name_of(choice.kind);
    }
  }
  // What comes from a file is what was saved.
  EXPECT_EQ(plan_from_json(to_json(planned.plan), "plan"), planned.plan);
}

INSTANTIATE_TEST_SUITE_P(Wirings, PlanFor, testing::Values("dgx1", "2*dgx-a100", "switch:6"));

// However little work it may do it ends at the same place, in a thread that has done none yet and
// in one that has; and the clock has no say in it.
TEST(MakePlan, SameInputSameBytesWhateverTheEffort) {
  for (const char* name : {"dgx1", "2*pcie4", "random-lan:15"}) {
    const Topology topology = topology_from_name(name);
    int cut_short = 0;
    for (const double effort : {1e-3, 1e-2, 3e-2, 1.0}) {
      PlanOptions options = four_collectives();
      options.effort = effort;
      const Planned first = make_plan(topology, options, all(), Budget{});
      std::string again;
      std::thread([&] { again = to_json(make_plan(topology, options, all(), {}).plan); }).join();
      EXPECT_EQ(to_json(first.plan), again) << name << " at effort " << effort;
      EXPECT_FALSE(first.interrupted);
      expect_whole(first.plan, options.kinds);
      cut_short += first.complete ? 0 : 1;
    }
    EXPECT_GT(cut_short, 0) << name;
    EXPECT_LT(cut_short, 4) << name;
  }
}

TEST(MakePlan, ChoosesForASizeWhateverOthersAreAskedFor) {
  for (const std::string name : {"islands", "mesh:3x4", "dgx-a100+pcie4", "3*z52"}) {
    const Topology topology = topology_from_name(name);
    const PlanOptions together = four_collectives();
    const Planned planned = make_plan(topology, together, all(), Budget{});
    for (std::size_t s = 0; s < together.sizes.size(); ++s) {
      PlanOptions alone = together;
      alone.sizes = {together.sizes[s]};
      const Planned one = make_plan(topology, alone, all(), Budget{});
      for (std::size_t kind = 0; kind < together.kinds.size(); ++kind) {
        const Choice& choice = planned.choices[kind * together.sizes.size() + s];
        EXPECT_EQ(choice.schedule, one.choices[kind].schedule)
            << name << ", " << name_of(choice.kind) << " of " << choice.size_bytes;
        EXPECT_EQ(choice.seconds, one.choices[kind].seconds);
      }
    }
  }
}

TEST(MakePlan, IsNeverWorseThanTheClassicSchedules) {
  const Topology topology = topology_from_name("mesh:3x3");
  const Planned classic = make_plan(topology, four_collectives(), {classic_strategy()}, {});
  const Planned best = make_plan(topology, four_collectives(), all(), {});
  for (std::size_t i = 0; i < best.choices.size(); ++i) {
    EXPECT_LE(best.choices[i].seconds, classic.choices[i].seconds);
  }
}

// Where the work it may do ends in the middle the clock would have the most to say.
TEST(MakePlan, IsTheSameBesideOtherWork) {
  const Topology topology = topology_from_name("3*z52");
  PlanOptions options = four_collectives();
  options.effort = 0.1;
  const Planned alone = make_plan(topology, options, all(), Budget{});
  EXPECT_FALSE(alone.complete);
  std::vector<std::jthread> others;
  for (int i = 0; i < 4; ++i) {
    others.emplace_back([](const std::stop_token& end) {
      while (!end.stop_requested()) continue;
    });
  }
  EXPECT_EQ(to_json(alone.plan), to_json(make_plan(topology, options, all(), Budget{}).plan));
}

/// What is planned where time is up after so many questions to strategies.
Planned stopped_after(int questions, const Topology& topology) {
  std::atomic<bool> stop = false;
  Budget budget;
  budget.stop = &stop;
  PlanOptions options = four_collectives();
  int asked = 0;
  options.progress = [&](int, int) { stop = stop || ++asked > questions; };
  return make_plan(topology, options, all(), budget);
}

// What is relayed waits for more than predictions know.
TEST(MakePlan, RelaysNothingWhereThatBringsNothing) {
  Topology topology = test::gpus(3);
  for (const auto& [src, dst] : {std::pair(0, 1), {1, 0}, {2, 0}, {2, 1}}) {
    test::add_link(topology, src, dst, 100);
  }
  const int from_0 = test::add_link(topology, 0, 2, 100);
  const int from_1 = test::add_link(topology, 1, 2, 100);
  test::add_port_group(topology, "into gpu2", {from_0, from_1}, 1);
  Schedule direct{.name = "direct",
                  .collective = {all_to_all},
                  .world_size = 3,
                  .num_chunks = 18,  // two from each rank to each
                  .steps = {{}}};
  for (Rank src = 0; src < 3; ++src) {
    for (Rank dst = 0; dst < 3; ++dst) {
      if (src == dst) continue;
      for (const int half : {0, 1}) {
        direct.steps[0].push_back({.src = src, .dst = dst, .chunk = 2 * (3 * src + dst) + half});
      }
    }
  }
  Schedule relayed = direct;
  relayed.name = "relayed";
  for (Transfer& transfer : relayed.steps[0]) {
    if (transfer.src == 1 && transfer.chunk == 11) transfer.dst = 0;
  }
  relayed.steps.push_back({{.src = 0, .dst = 2, .chunk = 11}});
  const PreparedTopology wiring(topology);
  constexpr std::uint64_t kSize = 1 << 20;
  ASSERT_LE(wiring.predict(relayed, kSize).seconds, wiring.predict(direct, kSize).seconds);
  const Strategy both{.name = "both", .make = [&](const Task&, const Budget&) {
                        return std::vector<Schedule>{relayed, direct};
                      }};
  PlanOptions options;
  options.kinds = {all_to_all};
  options.sizes = {kSize};
  const Planned planned = make_plan(topology, options, {both}, Budget());
  EXPECT_THAT(planned.choices.at(0).schedule.name, HasSubstr("direct"));
}

TEST(MakePlan, IsNoWorseForMoreTime) {
  for (const char* name : {"2*dgx1", "mesh:3x4", "islands"}) {
    const Topology topology = topology_from_name(name);
    std::map<std::pair<CollectiveKind, std::uint64_t>, double> best;
    for (const int most : {0, 3, 6, 12, 24, 48, 1000}) {
      for (const Choice& choice : stopped_after(most, topology).choices) {
        double& known =
            best.try_emplace({choice.kind, choice.size_bytes}, choice.seconds).first->second;
        // Of schedules that are alike the one with the fewest streams is taken.
        EXPECT_LE(choice.seconds, 1.02 * known)
            << name << ", " << name_of(choice.kind) << " of " << choice.size_bytes << " after "
            << most << " questions";
        known = std::min(known, choice.seconds);
      }
    }
  }
}

// What is found for one size is not worse at another than what is chosen there.
TEST(MakePlan, UsesForEachSizeWhatItFoundForAnyWhereTimeIsShort) {
  for (const char* name : {"2*dgx1", "mesh:3x4", "islands", "random-lan:15"}) {
    const Topology topology = topology_from_name(name);
    const PreparedTopology wiring(topology);
    for (const int most : {3, 9, 20, 40}) {
      const Planned planned = stopped_after(most, topology);
      EXPECT_FALSE(planned.complete);
      for (const Choice& here : planned.choices) {
        for (const Choice& there : planned.choices) {
          if (there.kind != here.kind) continue;
          const double size = static_cast<double>(here.size_bytes);
          // In the form that a plan has it may be a little faster than when it competed.
          EXPECT_LE(here.seconds, 1.1 * wiring.predict(there.schedule, size).seconds)
              << name << ", " << name_of(here.kind) << " of " << here.size_bytes
              << " by the schedule for " << there.size_bytes << " after " << most << " questions";
        }
      }
    }
  }
}

// What is in the plan is what was timed: not another schedule of the same transfers.
TEST(MakePlan, TakesAsLongAsItSays) {
  for (const char* name : {"2*dgx1", "torus:4x4", "lan:3x2x4,trunk=0.05", "random-lan:15"}) {
    const Topology topology = topology_from_name(name);
    const PreparedTopology wiring(topology);
    for (const Choice& choice : make_plan(topology, four_collectives(), all(), Budget{}).choices) {
      const auto size = static_cast<double>(choice.size_bytes);
      EXPECT_NEAR(wiring.predict(choice.schedule, size).seconds, choice.seconds,
                  1e-6 * choice.seconds)
          << name << ", " << name_of(choice.kind) << " of " << choice.size_bytes << ": "
          << choice.schedule.name;
    }
  }
}

// Its search is paid for.
TEST(MakePlan, TimesWhatTookAllTheWorkToFind) {
  const Topology topology = topology_from_name("mesh:4x4");
  Strategy thorough;
  thorough.name = "thorough";
  thorough.make = [](const Task& task, const Budget& budget) {
    std::vector<Schedule> made = {
        *routed(task.network, task.collective, task.size_bytes, Budget{})};
    count_work(2, budget.last_work);
    return made;
  };
  std::atomic<bool> stop = false;
  Strategy stopped;
  stopped.name = "stopped";
  stopped.make = [&](const Task& task, const Budget& budget) {
    stop = true;
    return thorough.make(task, budget);
  };
  PlanOptions options;
  options.kinds = {all_to_all};
  options.sizes = {1 << 30};
  const Planned planned = make_plan(topology, options, {classic_strategy(), thorough}, Budget{});
  EXPECT_FALSE(planned.complete);
  ASSERT_EQ(planned.choices.size(), 1u);
  EXPECT_EQ(planned.choices.front().strategy, "thorough");
  Budget budget;
  budget.stop = &stop;
  const Planned earlier = make_plan(topology, options, {classic_strategy(), stopped}, budget);
  ASSERT_EQ(earlier.choices.size(), 1u);
  EXPECT_EQ(earlier.choices.front().strategy, "classic") << "who asked to stop waits";
}

TEST(MakePlan, AskedToStopItReturnsWhatItHas) {
  const Topology topology = topology_from_name("2*dgx1");
  std::atomic<bool> stop = false;
  Budget budget;
  budget.stop = &stop;
  PlanOptions options = four_collectives();
  options.progress = [&](int done, int total) { stop = stop || 3 * done > total; };
  options.kinds = {all_gather, all_to_all};
  const Planned planned = make_plan(topology, options, all(), budget);
  EXPECT_FALSE(planned.complete);
  expect_whole(planned.plan, options.kinds);
}

TEST(MakePlan, ServesEveryCollectiveHoweverEarlyItIsStopped) {
  const std::atomic<bool> stop = true;
  Budget budget;
  budget.stop = &stop;
  PlanOptions options;
  for (const char* name : {"2*dgx1", "homo", "torus:3x3"}) {
    const Topology topology = topology_from_name(name);
    options.may_leave_out = false;
    const Planned planned = make_plan(topology, options, all(), budget);
    EXPECT_FALSE(planned.complete);
    expect_whole(planned.plan, options.kinds);
    for (const Choice& choice : planned.choices) {
      if (choice.kind == all_to_all) {
        EXPECT_EQ(choice.schedule.name, "pairwise") << "it relays nothing";
      }
    }
    options.may_leave_out = true;
    EXPECT_THAT(make_plan(topology, options, all(), budget).plan.entries, IsEmpty());
  }
}

TEST(MakePlan, KeepsWhatWasMadeInTimeWhereTheRestMayBeLeftOut) {
  std::atomic<bool> stop = false;
  Budget budget;
  budget.stop = &stop;
  PlanOptions options = four_collectives();
  options.may_leave_out = true;
  options.better = [&](Collective collective, std::uint64_t size, const Schedule&, double) {
    stop = stop || (collective.kind == all_gather && size == options.sizes.back());
  };
  options.kinds = {all_gather, all_to_all};
  const Planned planned = make_plan(topology_from_name("2*dgx1"), options, all(), budget);
  EXPECT_FALSE(planned.complete);
  expect_whole(planned.plan, {all_gather});
}

TEST(MakePlan, TakesFewStepsWhereEachCostsTime) {
  PlanOptions options;
  options.kinds = {all_reduce};
  options.sizes = {4 << 20, 64 << 20};
  const auto steps = [&](double step_s) {
    options.step_s = step_s;
    std::vector<std::size_t> counts;
    for (const Choice& choice : make_plan(topology_from_name("homo"), options, all(), {}).choices) {
      counts.push_back(choice.schedule.steps.size());
    }
    return counts;
  };
  EXPECT_THAT(steps(0), ElementsAre(6, 6)) << "a ring: as fast, with one stream per cable";
  EXPECT_THAT(steps(4e-3), ElementsAre(2, 2));
}

TEST(MakePlan, SparesASlowTrunkWhateverStepsCost) {
  PlanOptions options;
  options.kinds = {all_reduce};
  options.sizes = {64 << 20};
  const Topology pairs = topology_from_name("pairs");
  const double fast = make_plan(pairs, options, all(), {}).choices.front().seconds;
  options.step_s = 2e-3;
  const Choice choice = make_plan(pairs, options, all(), {}).choices.front();
  const double own = choice.seconds - 2e-3 * static_cast<double>(choice.schedule.steps.size());
  EXPECT_LT(own, 1.02 * fast);
}

TEST(MakePlan, NamesWhatADisconnectedTopologyLacks) {
  Topology topology = test::gpus(4);
  test::join(topology, 0, 1, 1);
  test::join(topology, 1, 2, 1);
  try {
    (void)make_plan(topology, four_collectives(), all(), {});
    FAIL() << "accepted";
  } catch (const TopologyError& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 3"));
  }
}

TEST(MakePlan, OneWayLinksAreServedInTheirDirection) {
  Topology ring = test::gpus(5);
  for (int r = 0; r < 5; ++r) test::add_link(ring, r, (r + 1) % 5, 10);
  EXPECT_FALSE(symmetric(ring));
  EXPECT_TRUE(symmetric(topology_from_name("dgx1")));
  const Planned planned = make_plan(ring, four_collectives(), all(), {});
  for (const PlanEntry& entry : planned.plan.entries) {
    EXPECT_EQ(first_fault(entry.schedule), std::nullopt) << entry.schedule.name;
  }
  for (const Choice& choice : planned.choices) {
    if (choice.size_bytes < 1 << 30 || choice.kind == all_to_all) continue;
    const double limit = lower_bound(ring, {choice.kind, 0}).seconds_per_byte * (1 << 30);
    EXPECT_LE(choice.seconds, (choice.kind == all_reduce ? 2.2 : 1.1) * limit)
        << name_of(choice.kind);
  }
}

}  // namespace
}  // namespace chorus::synth
