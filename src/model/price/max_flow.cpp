#include "model/price/max_flow.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "base/check.hpp"

namespace chorus {

MaxFlow::MaxFlow(int num_nodes) : out_(static_cast<std::size_t>(num_nodes)) {}

int MaxFlow::add_arc(int src, int dst, double capacity) {
  const auto half = static_cast<int>(halves_.size());
  halves_.push_back({dst, 0});
  halves_.push_back({src, 0});
  out_[static_cast<std::size_t>(src)].push_back(half);
  out_[static_cast<std::size_t>(dst)].push_back(half + 1);
  capacity_.push_back(capacity);
  return half / 2;
}

void MaxFlow::set_capacity(int arc, double capacity) {
  capacity_[static_cast<std::size_t>(arc)] = capacity;
}

bool MaxFlow::find_levels() {
  level_.assign(out_.size(), -1);
  level_[static_cast<std::size_t>(source_)] = 0;
  std::vector<int> queue{source_};
  for (std::size_t head = 0; head < queue.size(); ++head) {
    const auto node = static_cast<std::size_t>(queue[head]);
    for (const int index : out_[node]) {
      const Half& half = halves_[static_cast<std::size_t>(index)];
      int& level = level_[static_cast<std::size_t>(half.dst)];
      if (half.residual <= nothing_ || level >= 0) continue;
      level = level_[node] + 1;
      queue.push_back(half.dst);
    }
  }
  return level_[static_cast<std::size_t>(sink_)] >= 0;
}

double MaxFlow::push(int node, double limit) {
  if (node == sink_) return limit;
  const auto at = static_cast<std::size_t>(node);
  double pushed = 0;
  for (; next_[at] < out_[at].size(); ++next_[at]) {
    const auto index = static_cast<std::size_t>(out_[at][next_[at]]);
    Half& half = halves_[index];
    if (half.residual <= nothing_ || level_[static_cast<std::size_t>(half.dst)] != level_[at] + 1) {
      continue;
    }
    const double part = push(half.dst, std::min(limit - pushed, half.residual));
    half.residual -= part;
    halves_[index ^ 1].residual += part;
    pushed += part;
    if (limit - pushed <= nothing_) return pushed;
  }
  return pushed;
}

double MaxFlow::solve(int source, int sink) {
  CHORUS_CHECK(source != sink, "a flow goes from one node to another");
  source_ = source;
  sink_ = sink;
  double largest = 0;
  for (std::size_t arc = 0; arc < capacity_.size(); ++arc) {
    halves_[2 * arc].residual = capacity_[arc];
    halves_[2 * arc + 1].residual = 0;
    largest = std::max(largest, capacity_[arc]);
  }
  nothing_ = largest * 1e-12;
  double flow = 0;
  while (find_levels()) {
    next_.assign(out_.size(), 0);
    const double part = push(source_, std::numeric_limits<double>::infinity());
    if (part <= nothing_) break;
    flow += part;
  }
  find_levels();  // the sink is out of reach now; the levels mark the source's side
  return flow;
}

std::vector<char> MaxFlow::source_side() const {
  std::vector<char> side(level_.size());
  std::transform(level_.begin(), level_.end(), side.begin(),
                 [](int level) { return static_cast<char>(level >= 0 ? 1 : 0); });
  return side;
}

std::vector<char> MaxFlow::sink_side() const {
  std::vector<char> side(out_.size(), 0);
  side[static_cast<std::size_t>(sink_)] = 1;
  std::vector<int> queue{sink_};
  for (std::size_t head = 0; head < queue.size(); ++head) {
    for (const int index : out_[static_cast<std::size_t>(queue[head])]) {
      const int from = halves_[static_cast<std::size_t>(index)].dst;
      const double towards = halves_[static_cast<std::size_t>(index) ^ 1].residual;
      if (towards <= nothing_ || side[static_cast<std::size_t>(from)] != 0) continue;
      side[static_cast<std::size_t>(from)] = 1;
      queue.push_back(from);
    }
  }
  return side;
}

}  // namespace chorus
