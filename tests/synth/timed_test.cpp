#include "synth/ordering/timed.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>
#include <vector>

#include "base/index.hpp"
#include "chorus/topology.hpp"
#include "model/price/cost.hpp"
#include "model/schedule/contract.hpp"
#include "model/schedule/steps.hpp"
#include "random_trees.hpp"
#include "synth/multicast_routing.hpp"
#include "topology/discover/sources.hpp"

namespace chorus::synth {
namespace {

constexpr double kBytes = 1 << 24;

using Way = std::vector<std::tuple<Rank, Rank, Action>>;

std::map<ChunkId, Way> ways_of(const Schedule& schedule) {
  std::map<ChunkId, Way> ways;
  for (const Step& step : schedule.steps) {
    for (const Transfer& t : step) ways[t.chunk].emplace_back(t.src, t.dst, t.action);
  }
  for (auto& [chunk, way] : ways) std::ranges::sort(way);
  return ways;
}

void expect_the_same_in_time(const Schedule& schedule, const Topology& topology,
                             const std::string& what) {
  const Routes routes(topology);
  const Simulation before = simulate(schedule, topology, routes, kBytes);
  const Schedule result = timed(schedule, before);
  EXPECT_EQ(ways_of(schedule), ways_of(result)) << what;
  EXPECT_EQ(first_fault(result), std::nullopt) << what;
  EXPECT_NEAR(simulate(result, topology, routes, kBytes).seconds, before.seconds,
              1e-9 * before.seconds)
      << what;
}

TEST(Timed, KeepsWhatEachChunkDoesAndHowLongItTakes) {
  std::mt19937 random(3);
  for (const char* name :
       {"dgx1", "mesh:3x4", "lan:3x2x4,trunk=0.05", "random:12,seed=4,spread=4", "random-lan:15"}) {
    const Topology topology = topology_from_name(name);
    for (int draw = 0; draw < 20; ++draw) {
      const Schedule spread = test::over_random_trees(random, topology.world_size()).schedule;
      expect_the_same_in_time(spread, topology, name);
      const Schedule combine = mirrored(spread);
      expect_the_same_in_time(combine, topology, name);
      expect_the_same_in_time(all_reduce_of(combine, spread), topology, name);
    }
  }
}

// Down a chain all chunks are at the same four steps; in time the first reaches the end before the
// last sets out.
TEST(Timed, PutsWhatBeginsEarlierIntoAnEarlierStep) {
  const Topology topology = topology_from_name("mesh:5x1");
  Schedule chain{.name = "chain",
                 .collective = {CollectiveKind::broadcast, 0},
                 .world_size = 5,
                 .num_chunks = 16};
  for (int step = 0; step < 4; ++step) {
    // Out of the order of chunks, so that each is a message.
    for (ChunkId chunk = 15; chunk >= 0; --chunk) {
      chain.steps.resize(4);
      chain.steps[at(step)].push_back({step, step + 1, chunk, Action::copy});
    }
  }
  const Simulation simulation = simulate(chain, topology, Routes(topology), kBytes);
  const Schedule result = timed(chain, simulation);
  ASSERT_EQ(result.steps.size(), 19);
  for (std::size_t step = 0; step < result.steps.size(); ++step) {
    for (const Transfer& t : result.steps[step]) {
      EXPECT_EQ(static_cast<int>(step), t.src + 15 - t.chunk);
    }
  }
}

// Neither can come first: each reads what the other overwrites.
TEST(Timed, LeavesExchangesOfOneStepAsTheyAre) {
  const Topology topology = topology_from_name("mesh:2x2");
  Schedule doubling{.name = "doubling",
                    .collective = {CollectiveKind::all_reduce, 0},
                    .world_size = 4,
                    .num_chunks = 4};
  for (int step = 0; step < 2; ++step) {
    for (Rank rank = 0; rank < 4; ++rank) {
      for (ChunkId chunk = 0; chunk < 4; ++chunk) {
        send(doubling.steps, step, rank, rank ^ (1 << step), chunk, 1, Action::reduce);
      }
    }
  }
  ASSERT_EQ(first_fault(doubling), std::nullopt);
  EXPECT_EQ(timed(doubling, simulate(doubling, topology, Routes(topology), kBytes)), doubling);
}

}  // namespace
}  // namespace chorus::synth
