// Greedy synthesis: whatever link is idle takes the next chunk that is of use at its end.
#pragma once

#include <optional>

#include "chorus/schedule.hpp"
#include "synth/budget.hpp"
#include "synth/network.hpp"

namespace chorus::synth {

struct GreedyOptions {
  int chunks_per_block = 0;  ///< 0: what is predicted to be fastest for the size
  int seeds = 0;             ///< runs, of which the best is kept; 0: by the size of the network
};

/// A schedule "greedy" for `size_bytes` (PlanEntry's counting), by matching on the time-expanded
/// network (after TACOS: Won et al., MICRO 2024): time goes from event to event, and at each an
/// edge whose links and port groups are all idle takes a chunk that its source has and its
/// destination lacks, the one hardest to get there otherwise. A chunk under way on a slow edge is
/// taken over by one on which it arrives earlier. Any link speeds, switches, shared ports.
///
/// all_gather and broadcast this way; all_to_all, gather and scatter by moves that bring a chunk
/// nearer to its end; reduce_scatter and reduce as mirror images on the network turned round;
/// all_reduce from both. Nothing for a barrier, for one rank, where some rank cannot be reached, or
/// where `budget` is spent before the first run is complete.
///
/// Runs seeds budget.seed, +1, …, as many as a limited number of hops allows.
[[nodiscard]] std::optional<Schedule> greedy(const Network& network, Collective collective,
                                             double size_bytes, const Budget& budget,
                                             const GreedyOptions& options = {});

}  // namespace chorus::synth
