#include "synth/routing/paths.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>

#include "base/index.hpp"
#include "base/work.hpp"

namespace chorus::synth {
namespace {

constexpr double kFar = std::numeric_limits<double>::infinity();

}  // namespace

CheapestPaths::CheapestPaths(const Network& network)
    : network_(network),
      distance_(at(network.world_size())),
      via_(at(network.world_size())),
      from_(at(network.world_size())) {}

void CheapestPaths::run(Rank source, std::span<const double> cost) {
  std::fill(distance_.begin(), distance_.end(), kFar);
  std::fill(via_.begin(), via_.end(), -1);
  distance_[at(source)] = 0;
  heap_.assign(1, {0, source});
  count_work(distance_.size(), 120);
  const std::span<const Rank> destinations = network_.destinations();
  count_work(destinations.size() * at(network_.cells().count()), 4);
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const auto [distance, rank] = heap_.back();
    heap_.pop_back();
    if (distance > distance_[at(rank)]) continue;
    const int cell = network_.folded() ? network_.cells().cell_of(rank) : 0;
    for (const int index : network_.out(rank % network_.cells().size())) {
      const double there = distance + cost[at(index)];
      const Rank dst = destinations[at(index)];
      const Rank next = cell == 0 ? dst : network_.cells().moved(dst, cell);
      if (there >= distance_[at(next)]) continue;
      distance_[at(next)] = there;
      via_[at(next)] = index;
      from_[at(next)] = rank;
      heap_.emplace_back(there, next);
      std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
    }
  }
}

bool CheapestPaths::reached(Rank rank) const { return distance_[at(rank)] < kFar; }

double CheapestPaths::distance(Rank rank) const { return distance_[at(rank)]; }

Path CheapestPaths::path(Rank rank) const {
  Path path;
  for (; via_[at(rank)] >= 0; rank = from_[at(rank)]) path.push_back(via_[at(rank)]);
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace chorus::synth
