// Steps of a schedule by the times at which its transfers begin.
#pragma once

#include "chorus/schedule.hpp"
#include "model/price/cost.hpp"

namespace chorus::synth {

/// The same transfers in the same order on every lane (source, destination, action), in steps that
/// follow the clock of a simulation: what begins earlier is in an earlier step, what begins within
/// the time that one message takes is in one.
///
/// Ranks work through steps in order. Where steps count the hops of each chunk, everything that is
/// one hop deep comes before all that is two deep: links of the one rest while those of the other
/// are busy (an all-reduce over 11 trees predicted to take 0.85 s took 1.56), and what the
/// simulation sends on at once waits at a rank for what arrives late.
///
/// `simulation` is of `schedule`, which has no symmetry. Takes as long as before in a simulation:
/// no message is divided, none joined to another.
[[nodiscard]] Schedule timed(const Schedule& schedule, const Simulation& simulation);

}  // namespace chorus::synth
