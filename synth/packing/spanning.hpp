// Spanning trees without roots: what all-reduce needs of the network.
#pragma once

#include <optional>
#include <vector>

#include "synth/budget.hpp"
#include "synth/network.hpp"
#include "synth/packing.hpp"

namespace chorus::synth {

/// Trees along whose edges data goes both ways: contributions towards a root and results back.
/// Each edge is crossed once in each direction whichever rank is the root, so that the loads do not
/// depend on it, and nothing has to be rooted at every rank, as a reduce-scatter followed by an
/// all-gather does: a slow member, or a small island, is a leaf of every tree.
struct SpanningPacking {
  std::vector<SpanningTree> trees;  ///< rooted so that they are shallow
  /// Seconds per byte of all trees' data together that the most loaded resource is busy.
  double seconds_per_byte = 0;
};

/// Trees grow along the cheapest edges. Neither shape is always better: behind one switch hubs take
/// two hops and as many trees as ranks load evenly; between boxes one hub's NIC carries everything.
enum class TreeShape {
  around_hubs,   ///< prices as the other trees make them: the cheapest rank is next to all others
  without_hubs,  ///< prices rise with what the tree loads itself: deeper, and few load evenly
};

/// `trees` such trees of `network` that load the most loaded resource as little as was found: by
/// prices that grow exponentially with the load, tree after tree taken out and put back (as in Garg
/// and Könemann's approximation of fractional packings, kept to whole trees). On networks of
/// full-duplex cables without switches many trees come near the largest packing there is
/// (Nash-Williams and Tutte 1961), which no all-reduce beats.
///
/// Deterministic by budget.seed. Nothing if the edges that lead both ways do not connect all ranks,
/// or the budget is spent before all trees are there.
[[nodiscard]] std::optional<SpanningPacking> pack_spanning_trees(const Network& network, int trees,
                                                                 TreeShape shape,
                                                                 const Budget& budget);

}  // namespace chorus::synth
