#include "collectives/steps.hpp"

#include <algorithm>
#include <bit>
#include <string>
#include <tuple>
#include <utility>

namespace chorus {

Schedule finish(std::string_view name, const AlgorithmInput& input, int num_chunks, Steps steps) {
  std::erase_if(steps, [](const Step& step) { return step.empty(); });
  for (Step& step : steps) {
    std::sort(step.begin(), step.end(), [](const Transfer& a, const Transfer& b) {
      return std::tie(a.src, a.dst, a.chunk) < std::tie(b.src, b.dst, b.chunk);
    });
  }
  return {std::string(name), {input.kind, 0}, input.world_size, num_chunks, std::move(steps)};
}

Schedule from_gather(std::string_view name, const AlgorithmInput& input, const Steps& gather) {
  const int n = input.world_size;
  if (input.kind == CollectiveKind::all_gather) return finish(name, input, n, gather);
  if (input.kind == CollectiveKind::reduce_scatter) return finish(name, input, n, reversed(gather));
  return finish(name, input, n, there_and_back(gather));
}

int floor_power_of_two(int n) { return static_cast<int>(std::bit_floor(static_cast<unsigned>(n))); }

int ceil_log2(int n) { return std::bit_width(static_cast<unsigned>(n) - 1U); }

}  // namespace chorus
