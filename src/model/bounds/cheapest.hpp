// Cheapest ways through a graph.
#pragma once

#include <functional>
#include <limits>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "base/index.hpp"

namespace chorus::bounds {

/// From the nearest of some nodes to all others.
struct Cheapest {
  std::vector<double> distance;  ///< by node; infinite where no way leads
  std::vector<int> by;           ///< by node: the arc that reaches it; -1: none does
  std::vector<int> order;        ///< the nodes that are reached, nearest first
};

/// Dijkstra. `arcs[node]` lead on from a node, each `length(arc)` ≥ 0 long to the node `end(arc)`.
/// Takes the place of what `cheapest` holds, whose memory is used again.
template <class Length, class End>
void find_cheapest(const std::vector<std::vector<int>>& arcs, std::span<const int> sources,
                   Length length, End end, Cheapest& cheapest) {
  cheapest.distance.assign(arcs.size(), std::numeric_limits<double>::infinity());
  cheapest.by.assign(arcs.size(), -1);
  cheapest.order.clear();
  using Item = std::pair<double, int>;
  std::priority_queue<Item, std::vector<Item>, std::greater<>> queue;
  for (const int source : sources) {
    cheapest.distance[at(source)] = 0;
    queue.emplace(0, source);
  }
  std::vector<char> done(arcs.size(), 0);
  while (!queue.empty()) {
    const auto [reached, node] = queue.top();
    queue.pop();
    if (std::exchange(done[at(node)], 1) != 0) continue;
    cheapest.order.push_back(node);
    for (const int arc : arcs[at(node)]) {
      const double next = reached + length(arc);
      const int to = end(arc);
      if (next >= cheapest.distance[at(to)]) continue;
      cheapest.distance[at(to)] = next;
      cheapest.by[at(to)] = arc;
      queue.emplace(next, to);
    }
  }
}

}  // namespace chorus::bounds
