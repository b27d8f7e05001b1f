// Graphs that no machine has: for claims about all topologies.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <utility>

#include "topologies.hpp"

namespace chorus::test {

/// Connected, `n` ranks of two to four links each way, link speeds from 1 to 10 GB/s (as many per
/// octave), alpha from 1 to 5 µs.
inline Topology random_graph(int n, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto pick = [&](int count) { return static_cast<int>(random() % count); };
  const auto unit = [&] { return static_cast<double>(random() >> 11) * 0x1p-53; };
  Topology graph = gpus(n);
  graph.name = "random";
  const auto connect = [&](int a, int b) {
    for (const Topology::Link& link : graph.links) {
      if (link.src == a && link.dst == b) return;
    }
    const double gb_s = std::pow(10.0, unit());
    const double alpha_us = 1 + 4 * unit();
    for (const auto& [src, dst] : {std::pair(a, b), std::pair(b, a)}) {
      add_link(graph, src, dst, gb_s);
      graph.links.back().alpha_s = alpha_us * 1e-6;
    }
  };
  for (int i = 1; i < n; ++i) connect(pick(i), i);  // a tree, so that all are connected
  for (int i = 0; i < n; ++i) {
    const int j = pick(n);
    if (j != i) connect(i, j);
  }
  return graph;
}

}  // namespace chorus::test
