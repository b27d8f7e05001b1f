// Pictures of a simulated schedule.
#pragma once

#include <string>

#include "chorus/schedule.hpp"
#include "chorus/topology.hpp"
#include "model/price/cost.hpp"

namespace chorus {

/// A stand-alone SVG of at most 1400 × 1400 px: what the schedule does over time (its phases), the
/// critical path, and a row for each resource that is used (adapter, switch, port group, link) with
/// its use in per cent. A row with few transfers has a bar for each, coloured by chunk, reductions
/// hatched; one with many shows its use over time, darker for more. Resources that do not fit are
/// folded into one row per kind, which says how many and how busy the busiest is.
///
/// `simulation` must be of `schedule` on `topology` for `size_bytes`. The bytes of a transfer count
/// as spread evenly over the time they flow. Same input, same bytes.
[[nodiscard]] std::string timeline_svg(const Simulation& simulation, const Schedule& schedule,
                                       const Topology& topology, const Routes& routes,
                                       double size_bytes);

/// The same as a Chrome trace (the JSON object format of chrome://tracing and ui.perfetto.dev): a
/// process per source rank, a thread per destination, times in µs.
[[nodiscard]] std::string timeline_trace(const Simulation& simulation, const Schedule& schedule,
                                         const Topology& topology);

}  // namespace chorus
