#include "collectives/steps.hpp"

#include <algorithm>
#include <bit>
#include <string>
#include <tuple>
#include <utility>

#include "model/schedule/symmetry.hpp"

namespace chorus {

namespace {

/// Moves every transfer so that its chunk belongs to rank 0. Chunks are one per rank, or one per
/// pair of ranks.
void move_to_cell_0(Steps& steps, const Schedule& schedule) {
  const Cells cells = cells_of(schedule);
  const int per_rank = schedule.num_chunks / schedule.world_size;
  for (Step& step : steps) {
    for (Transfer& transfer : step) {
      const int by = cells.minus(0, transfer.chunk / per_rank);
      transfer = {cells.moved(transfer.src, by), cells.moved(transfer.dst, by),
                  moved_chunk(schedule, cells, transfer.chunk, by), transfer.action};
    }
  }
}

}  // namespace

Schedule finish(std::string_view name, const AlgorithmInput& input, int num_chunks, Steps steps,
                std::vector<int> symmetry) {
  Schedule schedule{.name = std::string(name),
                    .collective = {input.kind, 0},
                    .world_size = input.world_size,
                    .num_chunks = num_chunks,
                    .steps = {},
                    .symmetry = std::move(symmetry)};
  if (!schedule.symmetry.empty()) move_to_cell_0(steps, schedule);
  std::erase_if(steps, [](const Step& step) { return step.empty(); });
  for (Step& step : steps) {
    std::sort(step.begin(), step.end(), [](const Transfer& a, const Transfer& b) {
      return std::tie(a.src, a.dst, a.chunk) < std::tie(b.src, b.dst, b.chunk);
    });
  }
  schedule.steps = std::move(steps);
  return schedule;
}

Schedule from_gather(std::string_view name, const AlgorithmInput& input, const Steps& gather,
                     std::vector<int> symmetry) {
  const int n = input.world_size;
  if (input.kind == CollectiveKind::all_gather) {
    return finish(name, input, n, gather, std::move(symmetry));
  }
  if (input.kind == CollectiveKind::reduce_scatter) {
    return finish(name, input, n, reversed(gather), std::move(symmetry));
  }
  return finish(name, input, n, there_and_back(gather), std::move(symmetry));
}

int senders(const AlgorithmInput& input) { return input.compact ? 1 : input.world_size; }

std::vector<int> around(const AlgorithmInput& input) {
  return input.compact && input.world_size > 1 ? std::vector<int>{input.world_size}
                                               : std::vector<int>{};
}

std::vector<int> by_bits(const AlgorithmInput& input) {
  return input.compact ? std::vector<int>(static_cast<std::size_t>(ceil_log2(input.world_size)), 2)
                       : std::vector<int>{};
}

int floor_power_of_two(int n) { return static_cast<int>(std::bit_floor(static_cast<unsigned>(n))); }

int ceil_log2(int n) { return std::bit_width(static_cast<unsigned>(n) - 1U); }

}  // namespace chorus
