// Ways to divide a network into parts, in search of the cuts that limit it.
#pragma once

#include <optional>
#include <vector>

#include "model/bounds/network.hpp"

namespace chorus::bounds {

/// Disjoint sets of nodes that together hold all terminals, each at least one. Two at least.
struct Partition {
  std::vector<int> part_of;  ///< by node; -1: in none (switches between the parts)
  int parts = 0;

  /// Arcs that leave (or enter) a part.
  [[nodiscard]] std::vector<int> arcs(const Network& network, bool leaving) const;
  [[nodiscard]] std::vector<char> side(int part) const;
  /// That P who each know something all know everything takes 2·(P - 1) one-way messages (Harary &
  /// Schwenk 1974), for an all_reduce of every byte, each leaving one part and entering another.
  [[nodiscard]] double messages() const { return 2.0 * (parts - 1); }
};

/// Every terminal by itself; the parts by physical containment at each depth (the machines of a
/// cluster, their sockets); by the switch that ranks hang on; the parts that tight_sets() make.
/// Which ones are looked at decides how sharp a bound is, never whether it holds.
[[nodiscard]] std::vector<Partition> natural_partitions(const Network& network);

/// A partition whose parts all arcs together leave (or enter) less than messages()·rate, if arcs
/// carry `carried`: the one that lacks most. Nothing if there is none.
///
/// Exact but for switches that would have to be in two parts: what enters a set is submodular, and
/// the least sum over the parts of any partition is what Dilworth's truncation of it makes (Dunstan
/// 1976), terminal by terminal, each by a minimum cut (as in Cunningham 1985, the strength of a
/// graph).
[[nodiscard]] std::optional<Partition> wanting_partition(const Network& network,
                                                         const std::vector<double>& carried,
                                                         double rate, bool leaving);

/// The smallest sets of nodes into which an all-gather cannot be faster than spread_rate() by the
/// plain capacities: around each terminal that has such a set.
[[nodiscard]] std::vector<std::vector<char>> tight_sets(const Network& network);

}  // namespace chorus::bounds
