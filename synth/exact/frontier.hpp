// The walk along the frontier between few steps and few rounds per chunk.
#pragma once

#include <functional>
#include <string_view>

#include "synth/exact/exact.hpp"

namespace chorus::synth::exact {

struct FrontierFacts {
  int least_steps = 0;
  double least_rounds_per_chunk = 0;
  int chunk_unit = 1;  ///< C is a multiple of it
};

/// `solve` answers one instance. All points but their costs.
[[nodiscard]] Frontier walk_frontier(const FrontierFacts& facts, const Walk& walk,
                                     const Budget& budget, std::string_view what,
                                     const std::function<Result(const Instance&)>& solve);

}  // namespace chorus::synth::exact
