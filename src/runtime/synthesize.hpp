// A plan made where the program runs, for a wiring that somebody described.
#pragma once

#include "chorus/options.hpp"
#include "chorus/plan.hpp"
#include "chorus/topology.hpp"
#include "runtime/control.hpp"
#include "runtime/engine.hpp"

namespace chorus {

/// Rank 0 asks the strategies that need no solver, for options.synthesis_ms at most, and gives its
/// plan to the others: all must run the same. Collective. Where nothing comes of it (no time, too
/// large to hand round), the plan is empty and the log says so.
[[nodiscard]] Plan synthesize_together(Control& control, const GroupPlace& place,
                                       const Topology& topology, const Options& options);

}  // namespace chorus
