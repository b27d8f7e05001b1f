// What the tests ask of a topology, computed the plain way.
#pragma once

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "chorus/topology.hpp"

namespace chorus::test {

inline double gb_s(double beta_s_per_byte) { return 1e-9 / beta_s_per_byte; }

/// Sum of GB/s of the links into `node`.
inline double ingress(const Topology& t, int node) {
  double sum = 0;
  for (const Topology::Link& link : t.links) {
    if (link.dst == node) sum += gb_s(link.beta_s_per_byte);
  }
  return sum;
}

/// Sum of GB/s of the links from nodes whose name begins with `prefix` to the others.
inline double leaving(const Topology& t, const std::string& prefix) {
  double sum = 0;
  for (const Topology::Link& link : t.links) {
    if (t.nodes[link.src].name.starts_with(prefix) && !t.nodes[link.dst].name.starts_with(prefix)) {
      sum += gb_s(link.beta_s_per_byte);
    }
  }
  return sum;
}

/// Least alpha in seconds from node `from` to every node; infinite where there is no way.
inline std::vector<double> alpha_from(const Topology& t, int from) {
  std::vector<double> alpha(t.nodes.size(), std::numeric_limits<double>::infinity());
  alpha[from] = 0;
  for (bool changed = true; changed;) {
    changed = false;
    for (const Topology::Link& link : t.links) {
      if (alpha[link.src] + link.alpha_s < alpha[link.dst] - 1e-15) {
        alpha[link.dst] = alpha[link.src] + link.alpha_s;
        changed = true;
      }
    }
  }
  return alpha;
}

/// True if every rank reaches every other.
inline bool connected(const Topology& t) {
  for (const int from : t.rank_nodes) {
    const std::vector<double> alpha = alpha_from(t, from);
    for (const int to : t.rank_nodes) {
      if (alpha[to] == std::numeric_limits<double>::infinity()) return false;
    }
  }
  return true;
}

/// Everything a reader may rely on: unique names, indices in range, figures above zero, parents
/// before children. Empty if sound, else what is wrong.
inline std::string unsound(const Topology& t) {
  const int nodes = static_cast<int>(t.nodes.size());
  std::set<std::string> names;
  for (int i = 0; i < nodes; ++i) {
    if (!names.insert(t.nodes[i].name).second) return "two nodes called " + t.nodes[i].name;
    if (t.nodes[i].parent < -1 || t.nodes[i].parent >= i) return "parent of " + t.nodes[i].name;
  }
  for (const Topology::Link& link : t.links) {
    if (link.src < 0 || link.dst < 0 || link.src >= nodes || link.dst >= nodes) return "link ends";
    if (link.src == link.dst) return "link from " + t.nodes[link.src].name + " to itself";
    if (!(link.beta_s_per_byte > 0) || !std::isfinite(link.beta_s_per_byte) ||
        !(link.alpha_s >= 0) || !std::isfinite(link.alpha_s)) {
      return "link figures";
    }
    if (link.type.empty()) return "link without type";
  }
  for (const Topology::PortGroup& group : t.port_groups) {
    if (group.links.empty() || !(group.beta_s_per_byte > 0)) return "group " + group.name;
    for (const int link : group.links) {
      if (link < 0 || link >= static_cast<int>(t.links.size())) return "link of " + group.name;
    }
  }
  for (const int node : t.rank_nodes) {
    if (node < 0 || node >= nodes) return "rank node";
  }
  return {};
}

}  // namespace chorus::test
