// The exact synthesizer as strategies of the planner.
#pragma once

#include <vector>

#include "synth/plan.hpp"

namespace chorus::synth::exact {

/// "exact": the frontier of a collective that copies, on at most 16 ranks (all_to_all 10).
/// "direct": that of an all_reduce as a whole, on at most 9. A few questions that Z3 answers in
/// tenths of a second.
[[nodiscard]] std::vector<Strategy> strategies();

}  // namespace chorus::synth::exact
