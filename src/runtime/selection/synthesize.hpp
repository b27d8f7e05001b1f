// A plan made where the program runs, for a wiring that somebody described.
#pragma once

#include <stop_token>

#include "chorus/options.hpp"
#include "chorus/plan.hpp"
#include "chorus/topology.hpp"
#include "runtime/control/control.hpp"
#include "runtime/engine/connections.hpp"

namespace chorus {

/// Rank 0 asks the strategies that need no solver, for options.synthesis_ms at most, and gives its
/// plan to the others: all must run the same. Collective. Where nothing comes of it (no time, too
/// large to hand round), the plan is empty and the log says so. `place.key` is of a group that is
/// open. Ends soon after `stop`, with anything or an exception. Throws BootstrapError.
[[nodiscard]] Plan synthesize_together(Control& control, const GroupPlace& place,
                                       const Topology& topology, const Options& options,
                                       const std::stop_token& stop);

}  // namespace chorus
