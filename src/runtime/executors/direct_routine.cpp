// What a rank must know of the moves of the others.
#include <algorithm>

#include "model/schedule/contract.hpp"
#include "runtime/executors/direct_execution.hpp"

namespace chorus {
namespace {

void add(std::vector<Rank>& ranks, Rank rank) {
  if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.push_back(rank);
}

/// Adds a run, or lets the last one go on.
void add(std::vector<DirectRoutine::Run>& runs, const DirectRoutine::Run& run, int k) {
  for (const DirectRoutine::Run& other : runs) {  // read by several: staged once
    if (other.index <= run.index && run.index + run.count <= other.index + other.count &&
        other.rank == run.rank) {
      return;
    }
  }
  if (!runs.empty()) {
    DirectRoutine::Run& last = runs.back();
    if (last.rank == run.rank && last.index + last.count == run.index &&
        last.chunk + last.count == run.chunk && last.index / k == run.index / k) {
      last.count += run.count;
      return;
    }
  }
  runs.push_back(run);
}

}  // namespace

DirectRoutine make_direct_routine(std::span<const DirectProgram> programs, Rank rank,
                                  std::span<const CpuPlace> places) {
  DirectRoutine routine;
  routine.program = programs[static_cast<std::size_t>(rank)];
  routine.loads = loads_of(programs, places);
  const Collective collective = routine.program.collective;
  const int n = routine.program.world_size;
  const int k = routine.program.num_chunks / num_blocks(collective.kind, n);
  routine.chunks_per_block = k;
  routine.input_blocks = input_blocks(collective, n, rank);
  routine.output_blocks = output_blocks(collective, n, rank);
  for (Rank other = 0; other < n; ++other) {
    routine.most_input_blocks =
        std::max(routine.most_input_blocks, input_blocks(collective, n, other));
    routine.most_blocks = std::max(
        {routine.most_blocks, routine.most_input_blocks, output_blocks(collective, n, other)});
  }
  for (const DirectProgram& program : programs) {
    const bool mine = program.rank == rank;
    for (const Move& move : program.moves) {
      for (const Place& place : move.sources) {
        if (mine && place.rank != rank) add(routine.partners, place.rank);
        if (mine || place.rank != rank) continue;
        add(routine.readers, program.rank);
        add(routine.staged,
            {.rank = rank, .chunk = move.chunk, .count = move.count, .index = place.index}, k);
      }
      for (const Place& place : move.destinations) {
        if (mine && place.rank != rank) add(routine.partners, place.rank);
        if (mine || place.rank != rank) continue;
        add(routine.writers, program.rank);
        add(routine.collected,
            {.rank = program.rank, .chunk = move.chunk, .count = move.count, .index = place.index},
            k);
      }
    }
  }
  return routine;
}

}  // namespace chorus
