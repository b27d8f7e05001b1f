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
// Where its schedules are the fastest Z3 finds them quickly. Ten times the work found one more
// among six wirings, 1.6 % faster for 1 KB, and took 20 s.
constexpr unsigned kWorkPerQuestion = 1'000'000;  // about a tenth of a second, and as much to ask
constexpr int kMostQuestions = 12;

std::vector<Schedule> frontier_of(const Task& task, const Budget& budget, int most_chunks) {
  Synthesizer synthesizer(task.topology, task.collective);
  Frontier frontier = synthesizer.pareto(
      budget,
      {.most_chunks = most_chunks, .work = kWorkPerQuestion, .most_questions = kMostQuestions});
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
