// Trees over whatever the hops of a network share.
#pragma once

#include <vector>

#include "synth/effort.hpp"
#include "synth/network.hpp"
#include "synth/packing.hpp"

namespace chorus::synth {

/// Seconds per byte of one tree's data that the most loaded resource is busy with `trees`.
[[nodiscard]] double worst_load(const Network& network, const std::vector<SpanningTree>& trees);

/// Lowers the worst load: takes out one tree after the other and builds it anew from the hops whose
/// resources are least loaded, prices growing exponentially with the load (as in Garg and
/// Könemann's approximation of fractional packings, kept to whole trees). Trees without parents are
/// built for the first time. Stops at `goal`, when several rounds have brought nothing, or when the
/// effort is spent; returns the best seen.
[[nodiscard]] std::vector<SpanningTree> rerouted(const Network& network,
                                                 std::vector<SpanningTree> trees, double goal,
                                                 const Effort& effort);

}  // namespace chorus::synth
