// Puts a Topology together node by node.
#pragma once

#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "chorus/topology.hpp"

namespace chorus {

/// What a link is made of, in the units people use.
struct Wire {
  double gb_s = 1;      ///< 10⁹ bytes per second, each direction
  double alpha_us = 1;  ///< microseconds per message
  std::string_view type;
  Provenance provenance = Provenance::table;
};

/// Seconds per byte of `gb_s` GB/s.
[[nodiscard]] constexpr double beta_of(double gb_s) { return 1e-9 / gb_s; }

class TopologyBuilder {
 public:
  explicit TopologyBuilder(std::string name) { topology_.name = std::move(name); }

  /// Names must differ, and hosts and adapters are named by strangers: of two nodes with one name
  /// the later gets a mark.
  int node(std::string name, NodeKind kind, int parent = -1, std::string detail = {}) {
    while (!names_.insert(name).second) name += "'";
    topology_.nodes.push_back({std::move(name), kind, parent, std::move(detail)});
    return static_cast<int>(topology_.nodes.size()) - 1;
  }

  /// `parent` contains `node`.
  void place(int node, int parent) {
    topology_.nodes[static_cast<std::size_t>(node)].parent = parent;
  }

  /// The next rank sits on `node`.
  void rank(int node) { topology_.rank_nodes.push_back(node); }

  /// Returns the index of the new link.
  int one_way(int src, int dst, const Wire& wire) {
    topology_.links.push_back({src, dst, wire.alpha_us * 1e-6, beta_of(wire.gb_s),
                               std::string(wire.type), wire.provenance});
    return static_cast<int>(topology_.links.size()) - 1;
  }

  /// Returns the indices of the new links a→b and b→a.
  std::pair<int, int> both_ways(int a, int b, const Wire& wire) {
    const int there = one_way(a, b, wire);
    return {there, one_way(b, a, wire)};
  }

  void group(std::string name, std::vector<int> links, double gb_s, double message_us = 0) {
    topology_.port_groups.push_back(
        {std::move(name), std::move(links), beta_of(gb_s), message_us * 1e-6});
  }

  [[nodiscard]] bool has_node(const std::string& name) const { return names_.contains(name); }
  [[nodiscard]] const Topology& peek() const { return topology_; }
  [[nodiscard]] Topology take() { return std::move(topology_); }

 private:
  Topology topology_;
  std::unordered_set<std::string> names_;
};

}  // namespace chorus
