// Spanning trees of a folded network: what the ranks of one cell need, its images for all others.
#pragma once

#include <optional>
#include <vector>

#include "synth/budget.hpp"
#include "synth/multicast_routing.hpp"
#include "synth/network.hpp"

namespace chorus::synth {

/// Trees from every rank of cell 0 to all ranks, the same number from each.
struct RepeatedTrees {
  int trees_per_rank = 0;
  /// By root, then tree: hops in an order in which they could happen. Their chunk is not set.
  std::vector<std::vector<Hop>> trees;
  /// Seconds per byte of one tree's data that the most loaded resource is busy with all trees and
  /// their images.
  double load_s_per_byte = 0;
};

/// Trees of a folded network that load the most loaded orbit as little as was found, by prices as
/// rerouted() has them. What is dear (a NIC that a box shares) so is crossed once per tree and box,
/// and inside a box trees go whichever way its links are least loaded. Where there are few, prices
/// follow a tree `as_it_grows`: what is loaded is nearly even then, ways are longer.
///
/// Deterministic by budget.seed. Nothing if the edges do not join all ranks, or the budget is spent
/// before all trees are there.
[[nodiscard]] std::optional<RepeatedTrees> pack_repeated_trees(const Network& network,
                                                               int trees_per_rank,
                                                               const Budget& budget,
                                                               bool as_it_grows = true);

/// Symmetric all_gathers of `size_bytes` over such trees: what suits large sizes whatever the
/// inside of a cell is like. None where latency counts more than bytes, or cells are too many.
[[nodiscard]] std::vector<Schedule> repeated_trees(const Network& network, double size_bytes,
                                                   const Budget& budget);

/// Symmetric all_reduces that combine and spread over such trees at the same time, for a wiring
/// that is the same turned round. What combines and then spreads in the best order is better where
/// there is one; this suits boxes whose GPUs share one adapter.
[[nodiscard]] std::vector<Schedule> repeated_all_reduces(const Network& network, double size_bytes,
                                                         const Budget& budget);

}  // namespace chorus::synth
