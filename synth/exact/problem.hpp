// What a collective asks of a network, and what is left of it once a symmetry is imposed.
#pragma once

#include <cstdint>
#include <vector>

#include "chorus/schedule.hpp"
#include "synth/exact/automorphisms.hpp"
#include "synth/exact/round_network.hpp"

namespace chorus::synth::exact {

/// Data that begins at one rank and that others want; cut into chunks.
struct Block {
  Rank origin = 0;                 ///< -1: all contribute
  std::vector<Rank> destinations;  ///< ascending, without the origin
  int first_block = 0;             ///< its number in the Schedule: chunks [first_block·k, …)

  bool operator==(const Block&) const = default;
};

/// The blocks of a collective that only copies (or of an all_reduce); without those that nobody
/// else wants.
[[nodiscard]] std::vector<Block> blocks_of(Collective collective, int world_size);

/// A chunk that the solver decides about; stands for all its images under the group.
struct Seed {
  Rank origin = 0;
  std::vector<Rank> destinations;
  /// By element of the group: the chunk of the Schedule that this one becomes.
  std::vector<ChunkId> images;
};

/// The problem that the solver gets.
struct Problem {
  const RoundNetwork* network = nullptr;
  std::vector<Seed> seeds;
  std::vector<Limit> limits;
  std::vector<Permutation> group;            ///< on ranks, the identity first
  std::vector<std::vector<int>> way_images;  ///< [element][way]
  int num_chunks = 0;                        ///< of the Schedule
};

/// `chunks_per_block` chunks of each block. Every orbit of blocks under `group` must have
/// stabilizers whose order divides chunks_per_block: see fits().
///
/// A group that moves a block acts on its chunks by moving them along. Elements that leave the
/// block where it is permute its chunks: chunk j of a block stands for one of them, so that the
/// group acts freely on chunks, and all of an orbit's schedule follows from one of its chunks.
[[nodiscard]] Problem problem_of(const RoundNetwork& network, const std::vector<Block>& blocks,
                                 int chunks_per_block, const std::vector<Permutation>& group);

[[nodiscard]] bool fits(const std::vector<Permutation>& group, const std::vector<Block>& blocks,
                        int chunks_per_block);

}  // namespace chorus::synth::exact
