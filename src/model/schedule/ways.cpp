#include "model/schedule/ways.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "base/index.hpp"

namespace chorus {
namespace {

/// The outermost node that contains each node.
std::vector<int> containers(const Topology& topology) {
  std::vector<int> outermost(topology.nodes.size());
  for (std::size_t node = 0; node < outermost.size(); ++node) {
    int up = static_cast<int>(node);
    // A file may name parents in a circle.
    for (std::size_t depth = 0; depth < outermost.size() && topology.nodes[at(up)].parent >= 0;
         ++depth) {
      up = topology.nodes[at(up)].parent;
    }
    outermost[node] = up;
  }
  return outermost;
}

}  // namespace

Ways::Ways(const Topology& topology)
    : node_of(topology.nodes.size()), outermost(containers(topology)) {
  std::iota(node_of.begin(), node_of.end(), 0);
  arriving = node_of;
  for (const Topology::Link& link : topology.links) {
    src.push_back(link.src);
    dst.push_back(link.dst);
  }
  const auto inside = [&](int a, int b) { return outermost[at(a)] == outermost[at(b)]; };
  // By node: an adapter that some link joins to its host. Others (of a file that does not say what
  // contains what) are left as they are.
  std::vector<char> adapter(topology.nodes.size(), 0);
  for (const Topology::Link& link : topology.links) {
    if (!inside(link.src, link.dst)) continue;
    for (const int end : {link.src, link.dst}) {
      if (topology.nodes[at(end)].kind == NodeKind::nic) adapter[at(end)] = 1;
    }
  }
  for (const int node : topology.rank_nodes) adapter[at(node)] = 0;
  for (std::size_t node = 0; node < adapter.size(); ++node) {
    if (adapter[node] == 0) continue;
    arriving[node] = num_nodes();
    node_of.push_back(static_cast<int>(node));
  }
  for (std::size_t link = 0; link < topology.links.size(); ++link) {
    const auto [from, to] = std::pair(src[link], dst[link]);
    if (inside(from, to)) {
      src[link] = arriving[at(from)];
    } else {
      dst[link] = arriving[at(to)];
    }
  }
}

}  // namespace chorus
