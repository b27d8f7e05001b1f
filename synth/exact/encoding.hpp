// The one place that asks Z3: is there a schedule of so many steps and rounds?
#pragma once

#include <cstdint>
#include <vector>

#include "synth/budget.hpp"
#include "synth/exact/exact.hpp"
#include "synth/exact/problem.hpp"

namespace chorus::synth::exact {

struct Shape {
  int steps = 0;
  int rounds = 0;           ///< of all steps together, at most
  int rounds_per_step = 0;  ///< at most
};

/// A seed crossing a way in a step, counted from 0.
struct Send {
  int seed = 0;
  int way = 0;
  int step = 0;
  Action action = Action::copy;

  auto operator<=>(const Send&) const = default;
};

struct Solution {
  Answer answer = Answer::gave_up;
  std::vector<Send> sends;  ///< by step, seed, way
};

/// Is there a schedule that copies? Gives up when `budget` is spent or after `work` units of Z3's
/// own count (0: no limit), which, other than time, are the same on every machine. Throws
/// SynthesisError with Z3's words if it fails for another reason (memory).
[[nodiscard]] Solution ask(const Problem& problem, const Shape& shape, const Budget& budget,
                           unsigned work = 0);

}  // namespace chorus::synth::exact
