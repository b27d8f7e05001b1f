#include "synth/ordering/pipelined.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>
#include <vector>

#include "base/index.hpp"
#include "model/schedule/steps.hpp"
#include "random_trees.hpp"

namespace chorus::synth {
namespace {

test::OverRandomTrees drawn(unsigned seed) {
  std::mt19937 random(seed);
  const int ranks = 3 + test::below(random, 8);
  return test::over_random_trees(random, ranks);
}

using Way = std::vector<std::tuple<Rank, Rank, Action>>;

std::map<ChunkId, std::vector<Way>> ways_of(const Schedule& schedule) {
  std::map<ChunkId, std::vector<Way>> ways;
  for (const Step& step : schedule.steps) {
    std::map<ChunkId, Way> now;
    for (const Transfer& t : step) now[t.chunk].emplace_back(t.src, t.dst, t.action);
    for (auto& [chunk, way] : now) {
      std::ranges::sort(way);
      ways[chunk].push_back(way);
    }
  }
  return ways;
}

TEST(Pipelined, KeepsWhatEachChunkDoesAndStaysCorrect) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    const Schedule schedule = drawn(seed).schedule;
    const Schedule result = pipelined(schedule);
    EXPECT_EQ(ways_of(schedule), ways_of(result)) << seed;
    EXPECT_EQ(first_fault(result), std::nullopt) << seed;
  }
}

// At whatever step one looks, of each tree the same share of its chunks has set out.
TEST(Pipelined, LetsTheChunksOfEveryTreeSetOutEvenly) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    const auto [schedule, trees] = drawn(seed);
    if (schedule.steps.size() <= 2) continue;
    const Schedule result = pipelined(schedule);
    std::map<std::vector<Way>, double> all, out;  // two trees may be the same one
    const auto ways = ways_of(schedule);
    for (const auto& [chunk, way] : ways) ++all[way];
    double of_most = 1;
    for (const auto& [way, chunks] : all) of_most = std::max(of_most, chunks);
    std::vector<char> is_out(trees.size(), 0);
    std::size_t left = trees.size();
    for (const Step& step : result.steps) {
      for (const Transfer& t : step) {
        if (std::exchange(is_out[at(t.chunk)], 1) != 0) continue;
        ++out[ways.at(t.chunk)];
        --left;
      }
      if (left == 0) break;
      double least = 1, most = 0;
      for (const auto& [way, chunks] : all) {
        // The next chunk of a tree of few sets out as late as the last of its part.
        least = std::min(least, (out[way] + 1) / chunks);
        most = std::max(most, (out[way] - 1) / chunks);
      }
      EXPECT_LE(most, least + 1 / of_most + 1e-9) << seed;
    }
  }
}

TEST(Pipelined, LeavesWhatHasNoChunksAlikeOrOneHop) {
  Schedule ring{.name = "ring",
                .collective = {CollectiveKind::all_gather, 0},
                .world_size = 4,
                .num_chunks = 4};
  for (int step = 0; step < 3; ++step) {
    for (Rank rank = 0; rank < 4; ++rank) {
      send(ring.steps, step, rank, (rank + 1) % 4, (rank + 4 - step) % 4);
    }
  }
  EXPECT_EQ(pipelined(ring), ring);
  Schedule star{.name = "star",
                .collective = {CollectiveKind::broadcast, 0},
                .world_size = 3,
                .num_chunks = 8};
  send(star.steps, 0, 0, 1, 0, 8);
  send(star.steps, 0, 0, 2, 0, 8);
  EXPECT_EQ(pipelined(star), star);
}

}  // namespace
}  // namespace chorus::synth
