#include "synth/composing/levels.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "base/disjoint_sets.hpp"
#include "base/index.hpp"

namespace chorus::synth {
namespace {

constexpr double kClearGap = 4.0 / 3.0;

/// For every rank the least rank of its connected part over edges of at most `alpha_s`.
std::vector<Rank> parts_within(const Network& network, double alpha_s) {
  DisjointSets parts(at(network.world_size()));
  for (const Edge& edge : network.edges()) {
    if (edge.alpha_s <= alpha_s) parts.join(edge.src, edge.dst);
  }
  return parts.sets();
}

/// Ranks per part if all parts have equally many.
std::optional<int> equal_size(const std::vector<Rank>& leader) {
  std::map<Rank, int> sizes;
  for (const Rank of : leader) ++sizes[of];
  for (const auto& [part, size] : sizes) {
    if (size != sizes.begin()->second) return std::nullopt;
  }
  return sizes.begin()->second;
}

}  // namespace

Levels::Levels(const Network& network) : rank_at_(at(network.world_size())) {
  std::iota(rank_at_.begin(), rank_at_.end(), 0);
  if (network.folded()) {
    from_cells(network.cells());
  } else {
    from_latencies(network);
  }
  position_.resize(rank_at_.size());
  for (std::size_t i = 0; i < rank_at_.size(); ++i) {
    position_[at(rank_at_[i])] = static_cast<int>(i);
  }
}

void Levels::from_cells(const Cells& cells) {
  if (cells.size() > 1) sizes_.push_back(cells.size());
  sizes_.insert(sizes_.end(), cells.radices().begin(), cells.radices().end());
}

void Levels::from_latencies(const Network& network) {
  std::vector<double> alphas;
  for (const Edge& edge : network.edges()) alphas.push_back(edge.alpha_s);
  std::sort(alphas.begin(), alphas.end());
  std::vector<std::vector<Rank>> partitions;
  std::vector<int> part_sizes;
  for (std::size_t i = 0; i < alphas.size(); ++i) {
    const bool last = i + 1 == alphas.size();
    if (!last && alphas[i + 1] <= alphas[i] * kClearGap) continue;
    std::vector<Rank> leader = parts_within(network, alphas[i]);
    const std::optional<int> size = equal_size(leader);
    const int below = part_sizes.empty() ? 1 : part_sizes.back();
    if (!last && (!size || *size <= below || *size == network.world_size())) continue;
    // Everything, in the end, whatever the parts that are left.
    if (last) std::fill(leader.begin(), leader.end(), 0);
    partitions.push_back(std::move(leader));
    part_sizes.push_back(last ? network.world_size() : *size);
  }
  if (partitions.empty()) {  // one rank, or none connected
    partitions.emplace_back(at(network.world_size()), 0);
    part_sizes.push_back(network.world_size());
  }
  int below = 1;
  for (const int size : part_sizes) {
    sizes_.push_back(size / below);
    below = size;
  }
  // Outermost part first, then the next, then the rank: consecutive ranks of that order share
  // their inner parts.
  std::stable_sort(rank_at_.begin(), rank_at_.end(), [&](Rank a, Rank b) {
    for (std::size_t level = partitions.size(); level-- > 0;) {
      const Rank x = partitions[level][at(a)];
      const Rank y = partitions[level][at(b)];
      if (x != y) return x < y;
    }
    return a < b;
  });
}

int Levels::units(int first, int last) const {
  return std::accumulate(sizes_.begin() + first, sizes_.begin() + last, 1, std::multiplies<>());
}

int Levels::digit(Rank rank, int level) const {
  return position_[at(rank)] / units(0, level) % sizes_[at(level)];
}

Rank Levels::with_digit(Rank rank, int level, int digit) const {
  return rank_at_[at(position_[at(rank)] + (digit - this->digit(rank, level)) * units(0, level))];
}

Rank Levels::moved(Rank rank, int first, int by) const {
  for (int level = first; by > 0; ++level) {
    const int size = sizes_[at(level)];
    rank = with_digit(rank, level, (digit(rank, level) + by) % size);
    by /= size;
  }
  return rank;
}

std::vector<Rank> Levels::inner_part(Rank rank) const {
  std::vector<Rank> ranks;
  for (int digit = 0; digit < sizes_.front(); ++digit) ranks.push_back(with_digit(rank, 0, digit));
  return ranks;
}

}  // namespace chorus::synth
