// All-reduce for small sizes: unreduced values are swapped with all likes at once, level by level.
#pragma once

#include <vector>

#include "synth/plan.hpp"

namespace chorus::synth {

/// Schedules with as few hops one after the other as there are levels (or levels taken together):
/// at each, innermost first, every rank sends all it has to its likes and folds what they send.
/// Also in thirds: reduce inside to shares, swap the shares outside, hand the sums back. Nothing
/// for other kinds than all_reduce, or where two likes have no edge.
[[nodiscard]] std::vector<Schedule> exchanging(const Task& task, const Effort& effort);

}  // namespace chorus::synth
