// Maximum flows through a network of the bounds.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "model/bounds/network.hpp"
#include "model/price/max_flow.hpp"

namespace chorus::bounds {

/// Flows through a network from an extra node that feeds every source with weight·x.
class FedFlow {
 public:
  FedFlow(const Network& network, std::vector<double> sources)
      : sources_(std::move(sources)), feeder_(network.num_nodes()), flow_(network.num_nodes() + 1) {
    for (const Network::Arc& arc : network.arcs) flow_.add_arc(arc.src, arc.dst, arc.capacity);
    for (int node = 0; node < network.num_nodes(); ++node) {
      feeds_.push_back(
          sources_[static_cast<std::size_t>(node)] > 0 ? flow_.add_arc(feeder_, node, 0) : -1);
    }
  }

  void set_arc(int arc, double capacity) { flow_.set_capacity(arc, capacity); }
  void set_rate(double x) {
    for (std::size_t node = 0; node < feeds_.size(); ++node) {
      if (feeds_[node] >= 0) flow_.set_capacity(feeds_[node], sources_[node] * x);
    }
  }

  double flow_to(int node) { return flow_.solve(feeder_, node); }
  /// The nodes on the source's side of the cut just found, as few as possible.
  [[nodiscard]] Side side() const { return without_feeder(flow_.source_side()); }
  /// The nodes on the other side of it, as few as possible.
  [[nodiscard]] Side far_side() const { return without_feeder(flow_.sink_side()); }

 private:
  static Side without_feeder(Side side) {
    side.pop_back();
    return side;
  }

  std::vector<double> sources_;
  int feeder_;
  MaxFlow flow_;
  std::vector<int> feeds_;
};

/// A flow between any two nodes of a network.
class PairFlow {
 public:
  explicit PairFlow(const Network& network) : flow_(network.num_nodes()) {
    for (const Network::Arc& arc : network.arcs) flow_.add_arc(arc.src, arc.dst, arc.capacity);
  }
  void set_arc(int arc, double capacity) { flow_.set_capacity(arc, capacity); }
  double between(int src, int dst) { return flow_.solve(src, dst); }
  [[nodiscard]] Side side() const { return flow_.source_side(); }

 private:
  MaxFlow flow_;
};

}  // namespace chorus::bounds
