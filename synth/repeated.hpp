// Schedules for wirings that repeat themselves from cell to cell: made, ordered and timed for the
// chunks of one cell, which the images of the schedule carry to all others.
#pragma once

#include <optional>
#include <vector>

#include "synth/plan.hpp"
#include "synth/repeated_network.hpp"

namespace chorus::synth {

/// Symmetric schedules for all_gather and all_to_all (for all_reduce: those that are no
/// reduce_scatter followed by an all_gather) that suit the size. all_gather goes level by level as
/// level_by_level() does, or over several levels at once; all_to_all sends every block straight to
/// its end. Nothing for other kinds, or where two ranks of different cells have no edge.
[[nodiscard]] std::vector<Schedule> repeated_schedules(const RepeatedNetwork& network,
                                                       CollectiveKind kind, double size_bytes,
                                                       const Effort& effort);

/// replayed_seconds() of the whole schedule: what its images do, they do at the same time. Nothing
/// if its symmetry is not that of the network, or a transfer is no edge.
[[nodiscard]] std::optional<double> replayed_seconds(const Schedule& schedule,
                                                     const RepeatedNetwork& network,
                                                     double size_bytes);

}  // namespace chorus::synth
