// What the families of algorithms share: from lists of steps to a finished schedule.
#pragma once

#include <string_view>

#include "chorus/schedule.hpp"
#include "collectives/algorithms.hpp"
#include "model/steps.hpp"

namespace chorus {

/// Sorts each step by source, destination and chunk, so that neighbouring chunks can share a
/// message, and drops empty steps.
[[nodiscard]] Schedule finish(std::string_view name, const AlgorithmInput& input, int num_chunks,
                              Steps steps);

/// Serves all_gather, reduce_scatter and all_reduce by a spread in which chunk c of world_size
/// begins at rank c.
[[nodiscard]] Schedule from_gather(std::string_view name, const AlgorithmInput& input,
                                   const Steps& gather);

/// Largest power of two that is at most n; ceil(log2 n).
[[nodiscard]] int floor_power_of_two(int n);
[[nodiscard]] int ceil_log2(int n);

}  // namespace chorus
