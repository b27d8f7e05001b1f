#include "model/price/least_ratio.hpp"

#include <numeric>
#include <utility>

#include "base/index.hpp"
#include "model/price/max_flow.hpp"

namespace chorus {

LeastRatio least_ratio(std::span<const CapacityArc> arcs, const std::vector<double>& weights,
                       const std::vector<int>& targets,
                       const std::function<double(const std::vector<char>& side)>& crossing) {
  LeastRatio least;
  const auto try_side = [&](std::vector<char> side) {
    double within = 0;
    for (std::size_t node = 0; node < weights.size(); ++node) {
      if (side[node] != 0) within += weights[node];
    }
    if (within <= 0) return false;
    const double ratio = crossing(side) / within;
    if (ratio >= least.ratio * (1 - 1e-12)) return false;
    least.ratio = ratio;
    least.side = std::move(side);
    return true;
  };
  for (const int node : targets) {
    std::vector<char> all_but(weights.size(), 1);
    all_but[at(node)] = 0;
    try_side(std::move(all_but));
  }
  if (least.side.empty()) return least;

  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  const auto feeder = static_cast<int>(weights.size());
  MaxFlow flow(feeder + 1);
  for (const CapacityArc& arc : arcs) flow.add_arc(arc.src, arc.dst, arc.capacity);
  std::vector<std::pair<int, double>> feeds;  // arc, weight
  for (std::size_t node = 0; node < weights.size(); ++node) {
    if (weights[node] <= 0) continue;
    feeds.emplace_back(flow.add_arc(feeder, static_cast<int>(node), 0), weights[node]);
  }
  for (bool again = true; again;) {
    again = false;
    for (const int node : targets) {
      if (weights[at(node)] == total) continue;  // the only source
      for (const auto& [arc, weight] : feeds) flow.set_capacity(arc, weight * least.ratio);
      if (flow.solve(feeder, node) >= total * least.ratio * (1 - 1e-10)) continue;
      std::vector<char> side = flow.source_side();
      side.pop_back();
      if (try_side(std::move(side))) again = true;
    }
  }
  return least;
}

}  // namespace chorus
