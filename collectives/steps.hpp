// What the families of algorithms share: from lists of steps to a finished schedule.
#pragma once

#include <string_view>
#include <vector>

#include "chorus/schedule.hpp"
#include "collectives/algorithms.hpp"
#include "model/schedule/steps.hpp"

namespace chorus {

/// Sorts each step by source, destination and chunk, so that neighbouring chunks can share a
/// message, and drops empty steps.
///
/// With `symmetry` (radices, Schedule::symmetry) `steps` hold the transfers of one rank, one chunk
/// per rank (or pair of ranks): each is moved to the cell of rank 0's chunks.
[[nodiscard]] Schedule finish(std::string_view name, const AlgorithmInput& input, int num_chunks,
                              Steps steps, std::vector<int> symmetry = {});

/// Serves all_gather, reduce_scatter and all_reduce by a spread in which chunk c of world_size
/// begins at rank c.
[[nodiscard]] Schedule from_gather(std::string_view name, const AlgorithmInput& input,
                                   const Steps& gather, std::vector<int> symmetry = {});

/// Ranks [0, senders(input)) whose transfers a generator writes down: all, or one of a compact
/// form.
[[nodiscard]] int senders(const AlgorithmInput& input);
/// The symmetry of compact forms in which rank r does what rank 0 does, moved by r around the
/// circle; in which it does so with every bit of r flipped (world_size is a power of two). Empty
/// for forms that are not compact.
[[nodiscard]] std::vector<int> around(const AlgorithmInput& input);
[[nodiscard]] std::vector<int> by_bits(const AlgorithmInput& input);

/// Largest power of two that is at most n; ceil(log2 n).
[[nodiscard]] int floor_power_of_two(int n);
[[nodiscard]] int ceil_log2(int n);

}  // namespace chorus
