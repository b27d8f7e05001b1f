#include "model/price/max_flow.hpp"

#include <algorithm>
#include <cstddef>

#include "base/check.hpp"
#include "base/index.hpp"
#include "base/work.hpp"

namespace chorus {

MaxFlow::MaxFlow(int num_nodes) : out_(at(num_nodes)) {}

int MaxFlow::add_arc(int src, int dst, double capacity) {
  std::vector<Half>& forth = out_[at(src)];
  std::vector<Half>& back = out_[at(dst)];
  const auto half = static_cast<int>(forth.size());
  forth.push_back({dst, static_cast<int>(back.size()) + (src == dst ? 1 : 0), 0});
  back.push_back({src, half, 0});
  place_.push_back({src, half});
  capacity_.push_back(capacity);
  return static_cast<int>(capacity_.size()) - 1;
}

void MaxFlow::set_capacity(int arc, double capacity) { capacity_[at(arc)] = capacity; }

/// As far as the sink, if that can be reached.
bool MaxFlow::find_levels() {
  level_.assign(out_.size(), -1);
  level_[at(source_)] = 0;
  queue_.assign(1, source_);
  for (std::size_t head = 0; head < queue_.size(); ++head) {
    const int node = queue_[head];
    for (const Half& half : out_[at(node)]) {
      int& level = level_[at(half.dst)];
      if (half.residual <= nothing_ || level >= 0) continue;
      level = level_[at(node)] + 1;
      if (half.dst == sink_) return true;
      queue_.push_back(half.dst);
    }
  }
  return false;
}

double MaxFlow::push(int node, double limit) {
  if (node == sink_) return limit;
  std::vector<Half>& out = out_[at(node)];
  double pushed = 0;
  for (std::size_t& next = next_[at(node)]; next < out.size(); ++next) {
    Half& half = out[next];
    if (half.residual <= nothing_ || level_[at(half.dst)] != level_[at(node)] + 1) continue;
    const double part = push(half.dst, std::min(limit - pushed, half.residual));
    half.residual -= part;
    out_[at(half.dst)][at(half.reverse)].residual += part;
    pushed += part;
    if (limit - pushed <= nothing_) return pushed;
  }
  return pushed;
}

double MaxFlow::solve(int source, int sink, double enough) {
  CHORUS_CHECK(source != sink, "a flow goes from one node to another");
  source_ = source;
  sink_ = sink;
  double largest = 0;
  for (std::size_t arc = 0; arc < capacity_.size(); ++arc) {
    Half& forth = out_[at(place_[arc].node)][at(place_[arc].half)];
    forth.residual = capacity_[arc];
    out_[at(forth.dst)][at(forth.reverse)].residual = 0;
    largest = std::max(largest, capacity_[arc]);
  }
  nothing_ = largest * 1e-12;
  double flow = 0;
  while (find_levels()) {
    if (flow >= enough - nothing_) return flow;
    next_.assign(out_.size(), 0);
    count_work(capacity_.size(), 8);  // rather 12 by now: packings by cuts would end too early
    const double part = push(source_, enough - flow);
    if (part <= nothing_) break;
    flow += part;
  }
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
  side[at(sink_)] = 1;
  std::vector<int> queue{sink_};
  for (std::size_t head = 0; head < queue.size(); ++head) {
    for (const Half& half : out_[at(queue[head])]) {
      const double towards = out_[at(half.dst)][at(half.reverse)].residual;
      if (towards <= nothing_ || side[at(half.dst)] != 0) continue;
      side[at(half.dst)] = 1;
      queue.push_back(half.dst);
    }
  }
  return side;
}

}  // namespace chorus
