// Which links a message may take one after the other.
#pragma once

#include <vector>

#include "chorus/topology.hpp"

namespace chorus {

/// A topology's links as arcs of a graph all of whose paths data can take.
///
/// A network adapter passes on what its host sends to the network, and what the network brings to
/// its host; it is no switch between the devices of its host, nor between two networks. So an
/// adapter is two nodes here: its own number for what leaves the host, one behind the topology's
/// nodes for what arrives. Every other node keeps its number.
struct Ways {
  explicit Ways(const Topology& topology);

  [[nodiscard]] int num_nodes() const { return static_cast<int>(node_of.size()); }

  std::vector<int> src, dst;  ///< by link
  std::vector<int> node_of;   ///< by node of this graph: the topology's
  std::vector<int>
      arriving;  ///< by node of the topology: where an adapter has its arrivals; else itself
  std::vector<int>
      outermost;  ///< by node of the topology: the outermost that contains it, its host
};

}  // namespace chorus
