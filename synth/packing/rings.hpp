// Rings: trees that share no port with each other longer than they must.
#pragma once

#include <vector>

#include "synth/budget.hpp"
#include "synth/network.hpp"
#include "synth/packing.hpp"

namespace chorus::synth {

/// The ways round `rings` rings through all ranks, from each rank to the one before it: `rings`
/// trees per root, by root. Every rank hears from one and speaks to one per ring, all the time and
/// equally fast, so that nothing waits where streams would share a port: behind switches that ranks
/// limit, rings come nearer to the limit than bushier trees of the same load. Found from nearest
/// neighbours by moving segments while the sum of exponential prices of the loads falls.
///
/// Empty where no ring is found, or the budget is spent. Deterministic.
[[nodiscard]] std::vector<SpanningTree> pack_rings(const Network& network, int rings,
                                                   const Budget& budget);

}  // namespace chorus::synth
