// Cheapest ways from one rank to all others.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "synth/network.hpp"

namespace chorus::synth {

/// Edges of a network, in the order in which they are taken; of a folded one those that the ways
/// over ranks of other cells are images of.
using Path = std::vector<int>;

/// The rank that a hop over `edge`, or its image, leads to from `src`.
[[nodiscard]] inline Rank end_of(const Network& network, const Edge& edge, Rank src) {
  if (!network.folded()) return edge.dst;
  return network.cells().moved(edge.dst, network.cells().cell_of(src));
}

/// Dijkstra, with its memory kept from one run to the next. Ties go to the way found first.
class CheapestPaths {
 public:
  explicit CheapestPaths(const Network& network);

  /// `cost` is per edge and not negative. On a folded network the source is of cell 0.
  void run(Rank source, std::span<const double> cost);
  [[nodiscard]] bool reached(Rank rank) const;
  [[nodiscard]] double distance(Rank rank) const;
  /// From the source of the last run to `rank`, which was reached.
  [[nodiscard]] Path path(Rank rank) const;

 private:
  const Network& network_;
  std::vector<double> distance_;
  std::vector<int> via_;
  std::vector<Rank> from_;
  std::vector<std::pair<double, Rank>> heap_;
};

}  // namespace chorus::synth
