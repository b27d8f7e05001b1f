#include "synth/exact/problem.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "base/check.hpp"
#include "model/schedule/contract.hpp"

namespace chorus::synth::exact {
namespace {

using Key = std::pair<Rank, std::vector<Rank>>;

Key image(const Permutation& element, const Block& block) {
  Key key{block.origin < 0 ? -1 : element[static_cast<std::size_t>(block.origin)], {}};
  for (const Rank destination : block.destinations) {
    key.second.push_back(element[static_cast<std::size_t>(destination)]);
  }
  std::sort(key.second.begin(), key.second.end());
  return key;
}

/// By element: the index of the block that `block` becomes; nothing if it becomes none.
std::optional<std::vector<std::size_t>> images(const std::vector<Permutation>& group,
                                               const std::map<Key, std::size_t>& index,
                                               const Block& block) {
  std::vector<std::size_t> result;
  result.reserve(group.size());
  for (const Permutation& element : group) {
    const auto found = index.find(image(element, block));
    if (found == index.end()) return std::nullopt;
    result.push_back(found->second);
  }
  return result;
}

std::map<Key, std::size_t> indexed(const std::vector<Block>& blocks) {
  std::map<Key, std::size_t> index;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    index[{blocks[i].origin, blocks[i].destinations}] = i;
  }
  return index;
}

/// Sums over the group of how often the images of each way cross the limit; equal ones once.
std::vector<Limit> limits_of_seeds(const RoundNetwork& network,
                                   const std::vector<std::vector<int>>& way_images) {
  if (way_images.size() == 1) return network.limits;
  std::map<std::pair<std::vector<std::pair<int, int>>, double>, std::size_t> seen;
  std::vector<Limit> limits;
  std::vector<int> times(network.ways.size());
  for (const Limit& limit : network.limits) {
    std::fill(times.begin(), times.end(), 0);
    std::vector<int> crosses(network.ways.size(), 0);
    for (const auto& [way, count] : limit.crossed) crosses[static_cast<std::size_t>(way)] = count;
    for (const std::vector<int>& image_of : way_images) {
      for (std::size_t way = 0; way < times.size(); ++way) {
        times[way] += crosses[static_cast<std::size_t>(image_of[way])];
      }
    }
    Limit sum{limit.name, limit.per_round, {}};
    for (std::size_t way = 0; way < times.size(); ++way) {
      if (times[way] > 0) sum.crossed.emplace_back(static_cast<int>(way), times[way]);
    }
    const auto key = std::make_pair(sum.crossed, sum.per_round);
    if (seen.try_emplace(key, limits.size()).second) limits.push_back(std::move(sum));
  }
  return limits;
}

}  // namespace

std::vector<Block> blocks_of(Collective collective, int world_size) {
  // The contract itself says who holds and who wants each block: a Schedule of one chunk per block.
  Schedule shape;
  shape.collective = collective;
  shape.world_size = world_size;
  shape.num_chunks = num_blocks(collective.kind, world_size);
  std::vector<Block> blocks;
  for (ChunkId b = 0; b < shape.num_chunks; ++b) {
    Block block{origin(shape, b), {}, b};
    const Rank only = destination_of(shape, b);
    for (Rank rank = 0; rank < world_size; ++rank) {
      if (rank != block.origin && (only < 0 || only == rank)) block.destinations.push_back(rank);
    }
    if (!block.destinations.empty()) blocks.push_back(std::move(block));
  }
  return blocks;
}

bool fits(const std::vector<Permutation>& group, const std::vector<Block>& blocks,
          int chunks_per_block) {
  const std::map<Key, std::size_t> index = indexed(blocks);
  std::vector<char> seen(blocks.size(), 0);
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    if (seen[b] != 0) continue;
    const auto become = images(group, index, blocks[b]);
    if (!become) return false;
    for (const std::size_t other : *become) seen[other] = 1;
    const auto fixed = std::count(become->begin(), become->end(), b);
    if (chunks_per_block % fixed != 0) return false;
  }
  return true;
}

Problem problem_of(const RoundNetwork& network, const std::vector<Block>& blocks,
                   int chunks_per_block, const std::vector<Permutation>& group) {
  Problem problem;
  problem.network = &network;
  problem.group = group;
  for (const Permutation& element : group) {
    problem.way_images.push_back(way_permutation(network, element));
  }
  problem.limits = limits_of_seeds(network, problem.way_images);

  const std::map<Key, std::size_t> index = indexed(blocks);
  std::vector<char> seen(blocks.size(), 0);
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    if (seen[b] != 0) continue;
    const auto become = images(group, index, blocks[b]);
    CHORUS_CHECK(become.has_value(), "a symmetry of the problem maps blocks to blocks");
    const auto fixed = static_cast<int>(std::count(become->begin(), become->end(), b));
    CHORUS_CHECK(chunks_per_block % fixed == 0, "the symmetry fits the chunks");
    for (int first = 0; first < chunks_per_block; first += fixed) {
      Seed seed{blocks[b].origin, blocks[b].destinations, {}};
      std::vector<int> position(blocks.size(), 0);
      for (const std::size_t other : *become) {
        seen[other] = 1;
        seed.images.push_back(blocks[other].first_block * chunks_per_block + first +
                              position[other]++);
      }
      problem.seeds.push_back(std::move(seed));
    }
  }
  return problem;
}

}  // namespace chorus::synth::exact
