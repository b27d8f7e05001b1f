// Small wirings for tests, written by hand.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "chorus/topology.hpp"

namespace chorus::test {

inline constexpr double kMicrosecond = 1e-6;

/// Seconds per byte of a link of `gb_s` GB/s.
inline double beta(double gb_s) { return 1.0 / (gb_s * 1e9); }

/// n GPUs named gpu0 …, rank r on gpu r, and no links yet.
inline Topology gpus(int n) {
  Topology topology;
  topology.name = "by hand";
  for (int r = 0; r < n; ++r) {
    topology.nodes.push_back(
        {.name = "gpu" + std::to_string(r), .kind = NodeKind::gpu, .detail = {}});
    topology.rank_nodes.push_back(r);
  }
  return topology;
}

inline int add_node(Topology& topology, const std::string& name, NodeKind kind) {
  topology.nodes.push_back({.name = name, .kind = kind, .detail = {}});
  return static_cast<int>(topology.nodes.size()) - 1;
}

/// One direction. Returns the link's index.
inline int add_link(Topology& topology, int src, int dst, double gb_s,
                    double alpha_s = kMicrosecond, const std::string& type = "nvlink") {
  topology.links.push_back(
      {.src = src, .dst = dst, .alpha_s = alpha_s, .beta_s_per_byte = beta(gb_s), .type = type});
  return static_cast<int>(topology.links.size()) - 1;
}

/// Both directions.
inline void join(Topology& topology, int a, int b, double gb_s, double alpha_s = kMicrosecond,
                 const std::string& type = "nvlink") {
  add_link(topology, a, b, gb_s, alpha_s, type);
  add_link(topology, b, a, gb_s, alpha_s, type);
}

inline void add_port_group(Topology& topology, const std::string& name, std::vector<int> links,
                           double gb_s) {
  topology.port_groups.push_back(
      {.name = name, .links = std::move(links), .beta_s_per_byte = beta(gb_s)});
}

/// n GPUs in a circle, links of `gb_s` in both directions.
inline Topology ring(int n, double gb_s) {
  Topology topology = gpus(n);
  for (int r = 0; r + 1 < n; ++r) join(topology, r, r + 1, gb_s);
  if (n > 2) join(topology, n - 1, 0, gb_s);
  return topology;
}

/// n GPUs, each with one link of `gb_s` to one switch.
inline Topology star(int n, double gb_s) {
  Topology topology = gpus(n);
  const int hub = add_node(topology, "switch0", NodeKind::gpu_switch);
  for (int r = 0; r < n; ++r) join(topology, r, hub, gb_s);
  return topology;
}

}  // namespace chorus::test
