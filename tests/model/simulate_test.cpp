#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>

#include "base/work.hpp"
#include "chorus/error.hpp"
#include "model/bounds/bounds.hpp"
#include "model/price/cost.hpp"
#include "model/schedule/contract.hpp"
#include "schedules.hpp"
#include "topologies.hpp"

namespace chorus {
namespace {

using test::add_link;
using test::add_node;
using test::add_port_group;
using test::gpus;
using test::join;
using test::kMicrosecond;
using ::testing::ElementsAre;

constexpr double kMegabyte = 1e6;

/// All transfers of a broadcast of `num_chunks`, a list per step.
Schedule steps_of(int n, int num_chunks, std::vector<Step> steps) {
  return {.name = "by hand",
          .collective = {CollectiveKind::broadcast},
          .world_size = n,
          .num_chunks = num_chunks,
          .steps = std::move(steps)};
}

Transfer copy(Rank src, Rank dst, ChunkId chunk = 0) { return {src, dst, chunk, Action::copy}; }
Transfer reduce(Rank src, Rank dst, ChunkId chunk = 0) { return {src, dst, chunk, Action::reduce}; }

Simulation simulated(const Schedule& schedule, const Topology& topology, double size_bytes) {
  return simulate(schedule, topology, Routes(topology), size_bytes);
}

/// begin and end in µs of the transfer of `chunk` from src to dst.
std::pair<double, double> times_us(const Simulation& simulation, Rank src, Rank dst,
                                   ChunkId chunk = 0) {
  for (const TimelineEntry& entry : simulation.timeline) {
    if (entry.transfer.src == src && entry.transfer.dst == dst && entry.transfer.chunk == chunk) {
      return {entry.begin_s * 1e6, entry.end_s * 1e6};
    }
  }
  ADD_FAILURE() << "no transfer of chunk " << chunk << " from " << src << " to " << dst;
  return {};
}

void expect_us(std::pair<double, double> actual, double begin, double end) {
  EXPECT_NEAR(actual.first, begin, 1e-6 * std::max(1.0, begin));
  EXPECT_NEAR(actual.second, end, 1e-6 * end);
}

TEST(Simulate, OneTransferTakesAlphaPlusItsBytesOverTheSlowestLink) {
  Topology topology = gpus(2);
  const int hub = add_node(topology, "switch0", NodeKind::gpu_switch);
  add_link(topology, 0, hub, 10, 2 * kMicrosecond);
  add_link(topology, hub, 1, 4, 3 * kMicrosecond);
  const Simulation run = simulated(steps_of(2, 1, {{copy(0, 1)}}), topology, kMegabyte);
  EXPECT_NEAR(run.seconds, 5e-6 + 1e6 / 4e9, 1e-15);
  EXPECT_THAT(run.link_busy_s, ElementsAre(::testing::DoubleNear(250e-6, 1e-12),
                                           ::testing::DoubleNear(250e-6, 1e-12)));
}

TEST(Simulate, TwoTransfersThroughOnePortGroupTakeTwiceAsLong) {
  Topology topology = gpus(3);
  const int left = add_link(topology, 0, 1, 10, 0);
  const int right = add_link(topology, 0, 2, 10, 0);
  const Schedule both = steps_of(3, 1, {{copy(0, 1), copy(0, 2)}});
  EXPECT_NEAR(simulated(both, topology, kMegabyte).seconds, 100e-6, 1e-12);
  add_port_group(topology, "nic", {left, right}, 10);
  EXPECT_NEAR(simulated(both, topology, kMegabyte).seconds, 200e-6, 1e-12);
}

TEST(Simulate, ARouteThatCrossesAPortGroupTwiceHasHalfOfIt) {
  Topology topology = gpus(2);
  const int memory = add_node(topology, "memory", NodeKind::numa);
  const int in = add_link(topology, 0, memory, 20, 0);
  const int out = add_link(topology, memory, 1, 20, 0);
  add_port_group(topology, "memory bus", {in, out}, 20);
  const Simulation run = simulated(steps_of(2, 1, {{copy(0, 1)}}), topology, kMegabyte);
  EXPECT_NEAR(run.seconds, 100e-6, 1e-12);
}

TEST(Simulate, SharesAreMaxMinFair) {
  // 0→2 and 0→3 share the 10 GB/s out of rank 0; 0→3 and 1→3 share the 4 GB/s into rank 3. So the
  // latter two get 2 each and 0→2 the other 8.
  Topology topology = gpus(4);
  const int hub = add_node(topology, "switch0", NodeKind::gpu_switch);
  add_link(topology, 0, hub, 10, 0);
  add_link(topology, 1, hub, 10, 0);
  add_link(topology, hub, 2, 10, 0);
  add_link(topology, hub, 3, 4, 0);
  const Schedule schedule = steps_of(4, 1, {{copy(0, 2), copy(0, 3), copy(1, 3)}});
  const Simulation run = simulated(schedule, topology, kMegabyte);
  expect_us(times_us(run, 0, 2), 0, 1000.0 / 8);
  expect_us(times_us(run, 0, 3), 0, 1000.0 / 2);
  expect_us(times_us(run, 1, 3), 0, 1000.0 / 2);
}

TEST(Simulate, RatesChangeWhenTransfersBeginAndEnd) {
  // Both go into rank 2 at 10 GB/s, the second 40 µs later: 40 µs alone, 60 µs' worth of bytes at
  // half speed, then the second has 40 µs' worth left for itself.
  Topology topology = gpus(3);
  const int hub = add_node(topology, "switch0", NodeKind::gpu_switch);
  add_link(topology, 0, hub, 100, 0);
  add_link(topology, 1, hub, 100, 40 * kMicrosecond);
  add_link(topology, hub, 2, 10, 0);
  const Simulation run = simulated(steps_of(3, 1, {{copy(0, 2), copy(1, 2)}}), topology, kMegabyte);
  expect_us(times_us(run, 0, 2), 0, 40 + 120);
  expect_us(times_us(run, 1, 2), 0, 200);
  EXPECT_NEAR(run.link_busy_s[2], 200e-6, 1e-12);
  EXPECT_NEAR(run.link_busy_s[1], 160e-6, 1e-12) << "its alpha keeps no link busy";
}

TEST(Simulate, ATransferWaitsForItsDataAloneNotForItsStep) {
  // Rank 1 passes on the quick chunk 0 while chunk 1 of the same step still crawls elsewhere.
  Topology topology = gpus(4);
  join(topology, 0, 1, 10, 0);
  join(topology, 1, 2, 10, 0);
  join(topology, 0, 3, 1, 0);
  const Schedule schedule = steps_of(4, 2, {{copy(0, 1, 0), copy(0, 3, 1)}, {copy(1, 2, 0)}});
  const Simulation run = simulated(schedule, topology, 2 * kMegabyte);
  expect_us(times_us(run, 1, 2, 0), 100, 200);
  expect_us(times_us(run, 0, 3, 1), 0, 1000);
}

TEST(Simulate, AReductionMayArriveBeforeWhatItIsFoldedWithButNotBeSentOn) {
  // In step 1 rank 2 receives chunk 0 slowly; in step 2 rank 1 sends its own chunk 0 to rank 2,
  // where it lies in a slot until both can be folded and sent to rank 3.
  Topology topology = gpus(4);
  join(topology, 0, 2, 1, 0);
  join(topology, 1, 2, 10, 0);
  join(topology, 2, 3, 10, 0);
  const Simulation run = simulated(steps_of(4, 1, {{reduce(0, 2)}, {reduce(1, 2)}, {reduce(2, 3)}}),
                                   topology, kMegabyte);
  expect_us(times_us(run, 1, 2), 0, 100);
  expect_us(times_us(run, 2, 3), 1000, 1100);
}

TEST(Simulate, ASenderWaitsForEverythingThatEarlierStepsBringIt) {
  Topology topology = gpus(4);
  join(topology, 0, 2, 1, 0);
  join(topology, 1, 2, 10, 0);
  join(topology, 2, 3, 10, 0);
  const Simulation run = simulated(steps_of(4, 1, {{reduce(0, 2), reduce(1, 2)}, {reduce(2, 3)}}),
                                   topology, kMegabyte);
  expect_us(times_us(run, 1, 2), 0, 100);
  expect_us(times_us(run, 2, 3), 1000, 1100);
  // In one step it sends what it held when the step began.
  const Simulation at_once =
      simulated(steps_of(4, 1, {{reduce(0, 2), reduce(2, 3)}}), topology, kMegabyte);
  expect_us(times_us(at_once, 2, 3), 0, 100);
}

TEST(Simulate, ManyChunksMakeAPipeline) {
  Topology chain = gpus(3);
  join(chain, 0, 1, 1);
  join(chain, 1, 2, 1);
  std::vector<Step> steps(5);
  for (int c = 0; c < 4; ++c) {
    steps[c].push_back(copy(0, 1, c));
    steps[c + 1].push_back(copy(1, 2, c));
  }
  // Four pieces of 1 ms follow each other through two links of alpha 1 µs.
  const Simulation simulation = simulated(steps_of(3, 4, steps), chain, 4 * kMegabyte);
  EXPECT_NEAR(simulation.seconds, 5002e-6, 1e-9);
  EXPECT_NEAR(times_us(simulation, 0, 1, 1).first, 1000, 1e-6);  // its alpha passes meanwhile
  EXPECT_NEAR(times_us(simulation, 0, 1, 1).second, 2001, 1e-6);
}

TEST(Simulate, ALaneKeepsTheOrderOfTheSteps) {
  Topology pair = gpus(3);
  join(pair, 0, 1, 1);
  join(pair, 2, 1, 1);
  // Chunk 1 could go at once but its lane begins with chunk 0, which comes from rank 2 first.
  const Simulation simulation = simulated(
      steps_of(3, 2, {{copy(2, 1, 0)}, {copy(1, 0, 0)}, {copy(1, 0, 1)}}), pair, 2 * kMegabyte);
  EXPECT_NEAR(times_us(simulation, 1, 0, 0).second, 2002, 1e-6);
  EXPECT_NEAR(times_us(simulation, 1, 0, 1).second, 3002, 1e-6);
}

TEST(Simulate, RanksOnOneNodeExchangeForNothing) {
  Topology topology = gpus(1);
  topology.rank_nodes = {0, 0, 0};
  const Simulation run =
      simulated(test::all_pairs(CollectiveKind::all_to_all, 3), topology, kMegabyte);
  EXPECT_EQ(run.seconds, 0);
  EXPECT_EQ(run.timeline.size(), 6U);
}

TEST(Simulate, ABarrierTakesAlphaAlone) {
  const Topology topology = test::star(3, 10);
  const Simulation run =
      simulated(test::all_pairs(CollectiveKind::barrier, 3), topology, kMegabyte);
  EXPECT_DOUBLE_EQ(run.seconds, 2 * kMicrosecond);
}

TEST(Simulate, LinksWithoutALimitTakeAlphaAlone) {
  Topology topology = test::ring(4, 10);
  for (Topology::Link& link : topology.links) link.beta_s_per_byte = 0;
  const Simulation run = simulated(test::ring_all_gather(4), topology, kMegabyte);
  EXPECT_NEAR(run.seconds, 3 * kMicrosecond, 1e-15);
}

TEST(Simulate, ARingOnARingTakesWhatCostSays) {
  for (const int n : {2, 3, 8, 13}) {
    const Topology topology = test::ring(n, 25);
    const Routes routes(topology);
    for (const Schedule& schedule : {test::ring_all_gather(n), test::ring_all_reduce(n)}) {
      const double expected = cost(schedule, topology, routes).seconds(kMegabyte);
      EXPECT_NEAR(simulate(schedule, topology, routes, kMegabyte).seconds, expected,
                  expected * 1e-9);
    }
  }
}

TEST(Simulate, TheTimelineIsInOrderAndEveryTransferIsInIt) {
  const Topology topology = test::star(6, 10);
  const Schedule schedule = test::random_schedule(CollectiveKind::all_reduce, 6, 3);
  const Simulation run = simulated(schedule, topology, kMegabyte);
  std::size_t transfers = 0;
  for (const Step& step : schedule.steps) transfers += step.size();
  ASSERT_EQ(run.timeline.size(), transfers);
  for (std::size_t i = 1; i < run.timeline.size(); ++i) {
    EXPECT_LE(run.timeline[i - 1].begin_s, run.timeline[i].begin_s);
  }
  for (const TimelineEntry& entry : run.timeline) {
    EXPECT_LT(entry.begin_s, entry.end_s);
    EXPECT_LE(entry.end_s, run.seconds);
    const Step& step = schedule.steps[static_cast<std::size_t>(entry.step)];
    EXPECT_NE(std::find(step.begin(), step.end(), entry.transfer), step.end());
  }
}

/// A connected wiring with few different rates and alphas, some of its links in port groups.
Topology random_wiring(int n, std::mt19937& random) {
  const auto pick = [&](int below) { return static_cast<int>(random() % below); };
  Topology topology = gpus(n);
  const int hub = add_node(topology, "switch0", NodeKind::gpu_switch);
  for (int r = 0; r < n; ++r) join(topology, r, hub, 1 + pick(4), pick(3) * kMicrosecond);
  for (int extra = pick(2 * n); extra > 0; --extra) {
    const int a = pick(n);
    const int b = pick(n);
    if (a != b) join(topology, a, b, 1 + pick(6), pick(3) * kMicrosecond);
  }
  const auto num_links = static_cast<int>(topology.links.size());
  for (int group = pick(3); group > 0; --group) {
    std::vector<int> members;
    for (int link = pick(3); link < num_links; link += 1 + pick(4)) members.push_back(link);
    add_port_group(topology, "group" + std::to_string(group), members, 1 + pick(8));
  }
  return topology;
}

TEST(SimulateOnRandomWirings, NoScheduleBeatsTheLowerBound) {
  std::mt19937 random(5);
  constexpr CollectiveKind kKinds[] = {
      CollectiveKind::all_reduce, CollectiveKind::all_gather, CollectiveKind::reduce_scatter,
      CollectiveKind::all_to_all, CollectiveKind::broadcast,  CollectiveKind::reduce,
      CollectiveKind::gather,     CollectiveKind::scatter,    CollectiveKind::barrier};
  for (int trial = 0; trial < 180; ++trial) {
    const int n = 2 + trial % 5;
    const Topology topology = random_wiring(n, random);
    const Routes routes(topology);
    const Schedule schedule =
        test::random_schedule(kKinds[trial % 9], n, static_cast<std::uint32_t>(random()));
    const Bound bound = lower_bound(topology, schedule.collective);
    for (const double size : {0.0, 1e3, 1e6, 1e9}) {
      const double limit = bound.seconds(size);
      const double seconds = simulate(schedule, topology, routes, size).seconds;
      ASSERT_GE(seconds, limit * (1 - 1e-6))
          << name_of(schedule.collective.kind) << " of " << size << " bytes, trial " << trial;
      ASSERT_GE(cost(schedule, topology, routes).seconds(size), limit * (1 - 1e-6));
    }
    ASSERT_GE(static_cast<int>(schedule.steps.size()), bound.steps);
  }
}

TEST(SimulateOnRandomWirings, NoLinkOrPortGroupCarriesMoreThanItCan) {
  std::mt19937 random(6);
  for (int trial = 0; trial < 60; ++trial) {
    const int n = 2 + trial % 6;
    const Topology topology = random_wiring(n, random);
    const Routes routes(topology);
    const Schedule schedule =
        test::random_schedule(CollectiveKind::all_reduce, n, static_cast<std::uint32_t>(random()));
    const double bytes = chunk_bytes(schedule, kMegabyte);
    const Simulation run = simulate(schedule, topology, routes, kMegabyte);
    std::vector<double> carried(topology.links.size(), 0);
    for (const TimelineEntry& entry : run.timeline) {
      for (const int link : routes.path(entry.transfer.src, entry.transfer.dst)) {
        carried[static_cast<std::size_t>(link)] += bytes;
      }
    }
    for (std::size_t link = 0; link < carried.size(); ++link) {
      const double needed = carried[link] * topology.links[link].beta_s_per_byte;
      ASSERT_GE(run.link_busy_s[link], needed * (1 - 1e-9)) << "link " << link;
      ASSERT_LE(run.link_busy_s[link], run.seconds * (1 + 1e-9));
    }
    for (const Topology::PortGroup& group : topology.port_groups) {
      double sum = 0;
      for (const int link : group.links) sum += carried[static_cast<std::size_t>(link)];
      ASSERT_GE(run.seconds, sum * group.beta_s_per_byte * (1 - 1e-9)) << group.name;
    }
  }
}

TEST(Simulate, TheSameBitsEveryTime) {
  std::mt19937 random(8);
  const Topology topology = random_wiring(7, random);
  const Schedule schedule = test::random_schedule(CollectiveKind::all_to_all, 7, 1);
  const Simulation once = simulated(schedule, topology, kMegabyte);
  const Simulation again = simulated(schedule, topology, kMegabyte);
  EXPECT_EQ(once.timeline, again.timeline);
  EXPECT_EQ(once.link_busy_s, again.link_busy_s);
}

TEST(Simulate, SixtyFourRanksTakeWellUnderASecond) {
  const auto seconds = [](const Schedule& schedule, const Topology& topology) {
    const Routes routes(topology);
    const auto begin = std::chrono::steady_clock::now();
    (void)simulate(schedule, topology, routes, kMegabyte);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  const double ring = seconds(test::ring_all_reduce(64), test::ring(64, 25));
  const double star = seconds(test::ring_all_reduce(64), test::star(64, 25));
  const double pairs = seconds(test::all_pairs(CollectiveKind::all_to_all, 64), test::star(64, 25));
  RecordProperty("ring_ms", static_cast<int>(ring * 1e3));
  // Far above what they take, so that a busy machine or a sanitizer does not fail them.
  EXPECT_LT(ring, 1.0);
  EXPECT_LT(star, 1.0);
  EXPECT_LT(pairs, 2.0);
}

TEST(Simulate, IsRoughInLessWorkWhereManyAreUnderWay) {
  // 2,048 transfers share either direction of the cable between two switches.
  Topology halves = gpus(64);
  const int first = add_node(halves, "switch0", NodeKind::gpu_switch);
  const int second = add_node(halves, "switch1", NodeKind::gpu_switch);
  std::minstd_rand random(1);
  for (Rank rank = 0; rank < 64; ++rank) {
    const double alpha_s = kMicrosecond * static_cast<double>(random() % 1000);
    join(halves, rank, rank < 32 ? first : second, 25, alpha_s);
  }
  join(halves, first, second, 1);
  const Routes routes(halves);
  const Schedule all = test::all_pairs(CollectiveKind::all_to_all, 64, 3);
  const std::uint64_t before = work_done;
  const double exact_s = simulate(all, halves, routes, 64 * kMegabyte).seconds;
  const std::uint64_t between = work_done;
  const double rough_s = roughly_simulated_seconds(all, halves, routes, 64 * kMegabyte);
  EXPECT_NEAR(rough_s, exact_s, 0.05 * exact_s);
  EXPECT_NE(rough_s, exact_s);
  EXPECT_LT(work_done - between, 0.8 * static_cast<double>(between - before));
  const Schedule few = test::ring_all_reduce(64);
  EXPECT_EQ(roughly_simulated_seconds(few, halves, routes, kMegabyte),
            simulate(few, halves, routes, kMegabyte).seconds);
}

TEST(Simulate, RefusesTransfersThatNoPathCarries) {
  EXPECT_THROW((void)simulated(test::ring_all_gather(3), gpus(3), kMegabyte), TopologyError);
}

}  // namespace
}  // namespace chorus
