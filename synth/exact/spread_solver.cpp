#include "synth/exact/spread_solver.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "base/check.hpp"
#include "base/index.hpp"
#include "model/schedule/contract.hpp"
#include "synth/exact/trees_encoding.hpp"

namespace chorus::synth::exact {
namespace {

// What can be known of a bound that was computed in floating point.
constexpr double kSpreadSlack = 1e-6;

// Work of each look at every attempt. How long Z3 takes is a matter of luck with a long tail, so
// each look begins anew with another seed: scatter (5,3,6) on the DGX-1 takes 44.6 s with the first
// alone and 0.3 s so. Most instances that can be solved at all are at the first look.
constexpr unsigned kWork[] = {3'000'000,   6'000'000,   12'000'000,   25'000'000,
                              100'000'000, 300'000'000, 1'000'000'000};

constexpr std::size_t kMostGroups = 4;

}  // namespace

SpreadSolver::SpreadSolver(RoundNetwork network, Collective collective, double rounds_per_chunk,
                           bool symmetry)
    : network_(std::move(network)),
      collective_(collective),
      blocks_(blocks_of(collective, network_.world_size)),
      rounds_per_chunk_(rounds_per_chunk),
      symmetry_(symmetry) {
  const std::vector<std::vector<int>> distance = network_.distances();
  for (const Block& block : blocks_) {
    for (Rank from = 0; from < network_.world_size; ++from) {
      if (block.origin >= 0 && block.origin != from) continue;
      for (const Rank destination : block.destinations) {
        least_steps_ = std::max(least_steps_, distance[at(from)][at(destination)]);
      }
    }
  }
}

int SpreadSolver::least_rounds(int chunks_per_block) const {
  const auto bytes =
      static_cast<int>(std::ceil(rounds_per_chunk_ * chunks_per_block - kSpreadSlack));
  return std::max(least_steps_, bytes);
}

const Automorphisms& SpreadSolver::symmetries() {
  if (!automorphisms_) automorphisms_ = exact::automorphisms(network_);
  return *automorphisms_;
}

std::vector<SpreadSolver::Attempt> SpreadSolver::attempts(int chunks_per_block, int steps,
                                                          int rounds) {
  // A step could take all rounds that the others leave. But the more choices the solver has, the
  // harder an easy instance can become; twice the average is nearly always enough.
  const int all = rounds - steps + 1;
  int few = std::max(3, 2 * rounds / steps);
  for (const Limit& limit : network_.limits) {
    while (few < all && limit.capacity(few) < limit.crossed.front().second) ++few;
  }
  few = std::min(few, all);
  std::vector<Attempt> result;
  if (symmetry_) {
    const Rank root = is_rooted(collective_.kind) ? collective_.root : -1;
    for (Group& group : promising_groups(network_, symmetries(), root, chunks_per_block)) {
      if (result.size() == kMostGroups) break;
      if (!fits(group, blocks_, chunks_per_block)) continue;
      result.push_back({std::move(group), few, false, false});
    }
  }
  const Group trivial = elements({}, network_.world_size, 1);
  if (few < all) result.push_back({trivial, few, false, false});
  result.push_back({trivial, all, true, false});
  return result;
}

Result SpreadSolver::solve(int chunks_per_block, int steps, int rounds, const Budget& budget,
                           unsigned work) {
  if (blocks_.empty()) {
    return {Answer::found,
            {"exact", collective_, network_.world_size,
             num_blocks(collective_.kind, network_.world_size) * chunks_per_block},
            {},
            Proof::none,
            1};
  }
  if (steps < least_steps_ || rounds < steps || rounds < least_rounds(chunks_per_block)) {
    return {Answer::impossible, {}, {}, Proof::bound, 1};
  }
  const bool trees = collective_.kind == CollectiveKind::all_reduce;
  std::vector<Attempt> tries = attempts(chunks_per_block, steps, rounds);
  for (std::size_t look = 0; look <= std::size(kWork); ++look) {
    const bool last = look == std::size(kWork);
    for (Attempt& attempt : tries) {
      // At the end only what decides is left, for as long as it takes.
      if (attempt.over || (last && !attempt.proves)) continue;
      if (budget.spent()) return {};
      unsigned share = last ? work : kWork[look];
      if (work > 0) share = std::min(share, work);
      const Problem problem = problem_of(network_, blocks_, chunks_per_block, attempt.group);
      const Shape shape{steps, rounds, attempt.rounds_per_step};
      Budget luck = budget;
      luck.seed += look;
      const Solution solution =
          trees ? ask_trees(problem, shape, luck, share) : ask(problem, shape, luck, share);
      if (solution.answer == Answer::found)
        return expanded(problem, solution, chunks_per_block, steps);
      if (solution.answer == Answer::gave_up) continue;
      // Trees are not all there is.
      if (attempt.proves && trees) return {};
      if (attempt.proves) return {Answer::impossible, {}, {}, Proof::unsatisfiable, 1};
      attempt.over = true;
    }
    if (work > 0 && (last || work <= kWork[look])) return {};
  }
  return {};
}

Result SpreadSolver::expanded(const Problem& problem, const Solution& solution,
                              int chunks_per_block, int steps) const {
  Result result;
  result.answer = Answer::found;
  result.symmetry = problem.group.size();
  Schedule& schedule = result.schedule;
  schedule.name = "exact";
  schedule.collective = collective_;
  schedule.world_size = network_.world_size;
  schedule.num_chunks = num_blocks(collective_.kind, network_.world_size) * chunks_per_block;
  schedule.steps.resize(steps);
  for (const Send& send : solution.sends) {
    for (std::size_t g = 0; g < problem.group.size(); ++g) {
      const Way& way = network_.ways[at(problem.way_images[g][at(send.way)])];
      schedule.steps[at(send.step)].push_back(
          {way.src, way.dst, problem.seeds[at(send.seed)].images[g], send.action});
    }
  }
  std::erase_if(schedule.steps, [](const Step& step) { return step.empty(); });
  for (Step& step : schedule.steps) {
    std::sort(step.begin(), step.end(), [](const Transfer& a, const Transfer& b) {
      return std::tie(a.src, a.dst, a.chunk) < std::tie(b.src, b.dst, b.chunk);
    });
  }
  result.rounds = rounds_of(network_, schedule.steps);
  return result;
}

std::vector<int> rounds_of(const RoundNetwork& network, const std::vector<Step>& steps) {
  std::vector<int> rounds;
  std::vector<int> load(network.ways.size());
  for (const Step& step : steps) {
    std::fill(load.begin(), load.end(), 0);
    for (const Transfer& transfer : step) {
      const auto found = std::lower_bound(network.ways.begin(), network.ways.end(),
                                          Way{transfer.src, transfer.dst});
      CHORUS_CHECK(found != network.ways.end() && *found == (Way{transfer.src, transfer.dst}),
                   "a schedule sends on the ways of its network");
      ++load[at(static_cast<int>(found - network.ways.begin()))];
    }
    int needed = 1;
    for (const Limit& limit : network.limits) {
      int sum = 0;
      for (const auto& [way, times] : limit.crossed) sum += load[at(way)] * times;
      while (limit.capacity(needed) < sum) ++needed;
    }
    rounds.push_back(needed);
  }
  return rounds;
}

}  // namespace chorus::synth::exact
