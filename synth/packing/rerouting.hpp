// Trees over whatever the hops of a network share.
#pragma once

#include <vector>

#include "synth/budget.hpp"
#include "synth/network.hpp"
#include "synth/packing.hpp"

namespace chorus::synth {

/// A tree and the network (forward or reversed, of one topology) whose edges it is made of.
struct PlacedTree {
  const Network* network = nullptr;
  SpanningTree tree;
};

[[nodiscard]] std::vector<PlacedTree> placed(const Network& network,
                                             const std::vector<SpanningTree>& trees);

/// Seconds per byte of one tree's data that the most loaded resource is busy with `trees`.
[[nodiscard]] double worst_load(const std::vector<PlacedTree>& trees);

/// The mean load of what is loaded at all over the worst: 1 if nothing can be gained.
[[nodiscard]] double evenness(const std::vector<PlacedTree>& trees);

/// Seconds per byte of one tree's data that pieces need beside the most loaded resource's time: the
/// longest way of one from its root, each hop taking its share of what all trees share with it.
[[nodiscard]] double time_to_fill(const std::vector<PlacedTree>& trees);

/// Lowers the worst load: takes out one tree after the other and builds it anew from the hops whose
/// resources are least loaded, prices growing exponentially with the load (as in Garg and
/// Könemann's approximation of fractional packings, kept to whole trees). Trees without parents are
/// built for the first time. Stops at `goal`, when several rounds have brought nothing, or when the
/// budget is spent; returns the best seen, nothing if the budget was spent before all trees were
/// there.
[[nodiscard]] std::vector<PlacedTree> rerouted(std::vector<PlacedTree> trees, double goal,
                                               const Budget& budget);

}  // namespace chorus::synth
