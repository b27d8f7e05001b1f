#include "runtime/selection/strategies.hpp"

#include <string_view>

#include "collectives/algorithms.hpp"
#include "synth/composing/levels.hpp"

namespace chorus {
namespace {

constexpr int kManyRanks = 256;

/// Of more ranks than kManyRanks: schedules whose transfers are too many to be worth their time, or
/// which go around all ranks one by one.
bool too_long(std::string_view algorithm, CollectiveKind kind) {
  if (algorithm == "one_shot") {
    return kind == CollectiveKind::all_reduce || kind == CollectiveKind::all_to_all;
  }
  if (algorithm == "pairwise") return kind != CollectiveKind::all_to_all;
  return algorithm == "ring" || algorithm == "chain" || algorithm == "bruck" ||
         algorithm == "two_shot" || algorithm == "scatter_all_gather" ||
         algorithm == "double_binary_tree" || algorithm == "blueconnect";
}

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

std::vector<Schedule> make_classic(const synth::Task& task, const synth::Budget& budget) {
  const AlgorithmInput input{.kind = task.collective.kind,
                             .world_size = task.network.world_size(),
                             .levels = levels_in_rank_order(task.network)};
  // Without any work left one has to do: for an exchange that which relays nothing.
  const bool straight_alone = budget.spent() && input.kind == CollectiveKind::all_to_all;
  std::vector<Schedule> schedules;
  for (const Algorithm& algorithm : algorithms()) {
    if (budget.spent() && !schedules.empty()) break;
    if (straight_alone && algorithm.name != "pairwise") continue;
    if (algorithm.why_not(input)) continue;
    if (input.world_size > kManyRanks && too_long(algorithm.name, input.kind)) continue;
    schedules.push_back(algorithm.make(input));
  }
  return schedules;
}

}  // namespace

synth::Strategy classic_strategy() {
  return {.name = "classic", .make = make_classic, .combines = true, .every_size = false};
}

}  // namespace chorus
