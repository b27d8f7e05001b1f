#include "runtime/strategies.hpp"

#include "collectives/algorithms.hpp"
#include "synth/levels.hpp"

namespace chorus {
namespace {

constexpr int kMostRanks = 128;  // beyond, all-pairs schedules alone cost minutes to time

/// Sizes of the levels if ranks are numbered along them; empty otherwise.
std::vector<int> levels_in_rank_order(const synth::Network& network) {
  const synth::Levels levels(network);
  int stride = 1;
  for (int level = 0; level < levels.count(); ++level) {
    for (Rank rank = 0; rank < network.world_size(); ++rank) {
      if (levels.digit(rank, level) !=
          rank / stride % levels.sizes()[static_cast<std::size_t>(level)])
        return {};
    }
    stride *= levels.sizes()[static_cast<std::size_t>(level)];
  }
  return levels.sizes();
}

std::vector<Schedule> make_classic(const synth::Task& task, const synth::Effort& effort) {
  const AlgorithmInput input{.kind = task.collective.kind,
                             .world_size = task.network.world_size(),
                             .levels = levels_in_rank_order(task.network)};
  std::vector<Schedule> schedules;
  for (const Algorithm& algorithm : algorithms()) {
    if (effort.spent()) break;
    if (algorithm.why_not(input)) continue;
    if (input.world_size > kMostRanks && algorithm.name == "one_shot" &&
        task.collective.kind == CollectiveKind::all_reduce) {
      continue;
    }
    schedules.push_back(algorithm.make(input));
  }
  return schedules;
}

}  // namespace

synth::Strategy classic_strategy() {
  return {.name = "classic", .make = make_classic, .combines = true, .every_size = false};
}

}  // namespace chorus
