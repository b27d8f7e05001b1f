// Steps of a schedule by the times at which its transfers begin.
#pragma once

#include "chorus/schedule.hpp"
#include "model/price/cost.hpp"
#include "model/schedule/symmetry.hpp"

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

/// True for an all_reduce so large that pipelined() is not tried: of eleven such nine lost 7 to 77
/// % as pipelines, and to time them takes long. `step_s`: as in PlanOptions; jobs try it all the
/// same.
[[nodiscard]] inline bool loses_as_pipeline(const Schedule& schedule, double step_s) {
  constexpr std::size_t kFewTransfers = 20'000;
  return schedule.collective.kind == CollectiveKind::all_reduce && step_s == 0 &&
         num_transfers(schedule) > kFewTransfers;
}

}  // namespace chorus::synth
