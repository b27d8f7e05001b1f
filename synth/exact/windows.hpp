// Exact timing of a few dozen sends by difference logic.
#pragma once

#include <optional>

#include "synth/effort.hpp"
#include "synth/sketch/window.hpp"

namespace chorus::synth::exact {

/// A WindowSolver: begins of all jobs, in Z3, as a job shop: jobs that share a resource in one
/// order or the other; those that follow each other on an edge perhaps together, where that saves
/// what resources take per message. Binary search for the earliest end; the solver's work, not its
/// time, is bounded, so that the same window has the same answer.
[[nodiscard]] std::optional<Retimed> solve_window(const TimingWindow& window, const Effort& effort);

}  // namespace chorus::synth::exact
