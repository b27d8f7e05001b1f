// Schedules over random trees, for tests of the order of steps.
#pragma once

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "base/index.hpp"
#include "chorus/schedule.hpp"
#include "model/schedule/steps.hpp"

namespace chorus::synth::test {

inline int below(std::mt19937& random, int n) {
  return static_cast<int>(random() % static_cast<unsigned>(n));
}

/// Broadcasts down random trees, each of which carries some of the chunks, mixed at random: all
/// chunks of a tree at the same steps.
struct OverRandomTrees {
  Schedule schedule;
  std::vector<int> tree_of_chunk;
};

inline OverRandomTrees over_random_trees(std::mt19937& random, int ranks) {
  const int trees = 1 + below(random, 5);
  std::vector<int> tree_of_chunk;
  for (int tree = 0; tree < trees; ++tree) {
    for (int n = 1 + below(random, 20); n > 0; --n) tree_of_chunk.push_back(tree);
  }
  std::ranges::shuffle(tree_of_chunk, random);
  Schedule schedule{.name = "trees",
                    .collective = {CollectiveKind::broadcast, 0},
                    .world_size = ranks,
                    .num_chunks = static_cast<int>(tree_of_chunk.size())};
  for (int tree = 0; tree < trees; ++tree) {
    std::vector<int> depth(at(ranks), 0);
    for (Rank rank = 1; rank < ranks; ++rank) {
      const Rank parent = below(random, rank);
      depth[at(rank)] = depth[at(parent)] + 1;
      for (ChunkId chunk = 0; chunk < schedule.num_chunks; ++chunk) {
        if (tree_of_chunk[at(chunk)] != tree) continue;
        send(schedule.steps, depth[at(rank)] - 1, parent, rank, chunk);
      }
    }
  }
  return {std::move(schedule), std::move(tree_of_chunk)};
}

}  // namespace chorus::synth::test
