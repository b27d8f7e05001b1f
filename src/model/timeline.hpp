// Pictures of a simulated schedule.
#pragma once

#include <string>

#include "chorus/schedule.hpp"
#include "chorus/topology.hpp"
#include "model/cost.hpp"

namespace chorus {

/// What a row of the picture is.
enum class TimelineRows {
  rank_pairs,  ///< one per pair of ranks that exchange something, by source, then destination
  links,       ///< one per topology link that is used; a transfer appears on each link of its route
};

/// A stand-alone SVG: a row per rank pair or link, a bar per transfer coloured by chunk (reductions
/// hatched), an axis in µs, a legend. Transfers that overlap in one row are stacked.
///
/// `simulation` must be of `schedule` on `topology`. Same input, same bytes.
[[nodiscard]] std::string timeline_svg(const Simulation& simulation, const Schedule& schedule,
                                       const Topology& topology, const Routes& routes,
                                       TimelineRows rows = TimelineRows::rank_pairs);

/// The same as a Chrome trace (the JSON object format of chrome://tracing and ui.perfetto.dev): a
/// process per source rank, a thread per destination, times in µs.
[[nodiscard]] std::string timeline_trace(const Simulation& simulation, const Schedule& schedule,
                                         const Topology& topology);

}  // namespace chorus
