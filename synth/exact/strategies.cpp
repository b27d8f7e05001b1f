#include "synth/exact/strategies.hpp"

#include <utility>

#include "synth/exact/exact.hpp"

namespace chorus::synth::exact {
namespace {

// Beyond these, on a wiring without symmetry, most questions end without an answer.
constexpr int kMostRanks = 16;
constexpr int kMostRanksInExchange = 10;
constexpr int kMostRanksDirect = 9;
constexpr int kMostChunks = 8;
constexpr unsigned kWorkPerQuestion = 10'000'000;  // about a second per question
constexpr int kMostUnanswered = 2;                 // after that most others have no answer either

std::vector<Schedule> frontier_of(const Task& task, const Budget& budget, int most_chunks) {
  Synthesizer synthesizer(task.topology, task.collective);
  Frontier frontier = synthesizer.pareto(
      budget,
      {.most_chunks = most_chunks, .work = kWorkPerQuestion, .most_unanswered = kMostUnanswered});
  std::vector<Schedule> schedules;
  for (Point& point : frontier.points) {
    schedules.push_back(std::move(point.schedule));
  }
  return schedules;
}

std::vector<Schedule> spread(const Task& task, const Budget& budget) {
  const bool exchange = task.collective.kind == CollectiveKind::all_to_all;
  if (task.network.world_size() > (exchange ? kMostRanksInExchange : kMostRanks)) return {};
  return frontier_of(task, budget, 0);
}

std::vector<Schedule> direct(const Task& task, const Budget& budget) {
  if (task.collective.kind != CollectiveKind::all_reduce) return {};
  if (task.network.world_size() > kMostRanksDirect) return {};
  return frontier_of(task, budget, kMostChunks);
}

}  // namespace

std::vector<Strategy> strategies() {
  return {{.name = "exact", .make = spread, .every_size = false},
          {.name = "direct", .make = direct, .combines = true, .every_size = false}};
}

}  // namespace chorus::synth::exact
