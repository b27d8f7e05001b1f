// What exchange_rate() is made of, for src/model/bounds alone.
#pragma once

#include <optional>
#include <vector>

#include "model/bounds/network.hpp"

namespace chorus::bounds {

/// One commodity: what `source` sends to every other terminal.
struct Commodity {
  int source = 0;
  std::vector<double> demand;  // by node, per unit of the rate
};

/// Of the representatives of `network`: where the wiring repeats itself those of all cells are
/// their images.
[[nodiscard]] std::vector<Commodity> exchanged(const Network& network);

[[nodiscard]] std::vector<std::vector<int>> arcs_by_source(const Network& network);

/// Orbits of arcs under the moves of the repetition; without one, each arc by itself.
[[nodiscard]] std::vector<int> orbits_of_arcs(const Network& network);

/// Fewest arcs from a node, and everything split evenly over all shortest paths.
struct ShortestPaths {
  std::vector<int> distance;  // by node, -1: not reached
  std::vector<double> paths;  // number of shortest paths, by node
  std::vector<int> order;     // nodes by distance

  ShortestPaths(const Network& network, const std::vector<std::vector<int>>& out, int source);
  /// Adds to `load` what each arc carries of `commodity` per unit of the rate.
  void spread(const Network& network, const std::vector<std::vector<int>>& out,
              const Commodity& commodity, std::vector<double>& load) const;
};

/// Pairs of ranks with the first on `side` and the second not.
[[nodiscard]] double demand_across(const Network& network, const Side& side);

/// The nodes that are reached from `start` over arcs that are not `full`.
[[nodiscard]] Side reached_before(const Network& network, const std::vector<std::vector<int>>& out,
                                  const std::vector<char>& full, int start);

/// A limit of exchange_rate() where a linear program would be too large: within a few percent of
/// it, in seconds for a thousand ranks. Never below it.
///
/// An exchange at rate z pays, whatever the arcs and port groups cost, no less than z times demand
/// times distance, summed over all pairs, and no more than all capacities cost: the dual of the
/// linear program. Prices rise exponentially with the load of a routing (as in Garg and Könemann,
/// FOCS 1998), of which one source after the other moves a part of what it sends to the ways that
/// are cheapest then; the mean of the prices proves most. What that routing fills may be a cut,
/// which is then looked at itself.
[[nodiscard]] Rate priced_exchange_rate(const Network& network);

/// The same where a message between two ranks goes over its route, which the switches choose, and
/// other ways lead over ranks that relay. Nothing if it is hardly less than `most_gb_s`, or where
/// there are no switches, hosts with several networks to choose from, or so many ranks that it
/// would take more than seconds.
[[nodiscard]] std::optional<Rate> routed_exchange_rate(const Network& network, double most_gb_s);

}  // namespace chorus::bounds
