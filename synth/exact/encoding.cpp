#include "synth/exact/encoding.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "synth/exact/terms.hpp"

namespace chorus::synth::exact {
namespace {

class Encoding {
 public:
  Encoding(z3::context& context, const Problem& problem, const Shape& shape)
      : context_(context),
        problem_(problem),
        network_(*problem.network),
        shape_(shape),
        distance_(network_.distances()),
        rounds_(context, shape) {}

  bool assert_into(z3::solver& solver, const Budget& budget) {
    rounds_.assert_into(solver);
    for (std::size_t s = 0; s < problem_.seeds.size(); ++s) {
      make_seed(static_cast<int>(s));
      flow(solver, static_cast<int>(s));
      if (literals_ > kMostLiterals || budget.spent()) return false;
    }
    for (const Limit& limit : problem_.limits) {
      for (int step = 1; step <= shape_.steps; ++step) keep(solver, limit, step);
    }
    return !budget.spent();
  }

  [[nodiscard]] Solution read(const z3::model& model) const {
    Solution solution;
    solution.answer = Answer::found;
    for (int step = 1; step <= shape_.steps; ++step) {
      for (std::size_t s = 0; s < snd_.size(); ++s) {
        for (std::size_t w = 0; w < network_.ways.size(); ++w) {
          const auto& literal = snd_[s][w][at(step)];
          if (literal && model.eval(*literal, true).is_true()) {
            solution.sends.push_back(
                {static_cast<int>(s), static_cast<int>(w), step - 1, Action::copy});
          }
        }
      }
    }
    return solution;
  }

 private:
  using Literals = std::vector<std::optional<z3::expr>>;  // by step, [0] unused

  /// Literals for what can matter: the seed can be at the source in time, and somebody who wants it
  /// can still be reached from the destination.
  void make_seed(int s) {
    const Seed& seed = problem_.seeds[at(s)];
    auto& snd = snd_.emplace_back(network_.ways.size(), Literals(at(shape_.steps) + 1));
    auto& has = has_.emplace_back(at(network_.world_size), Literals(at(shape_.steps) + 1));
    const std::vector<int>& from_origin = distance_[at(seed.origin)];
    std::vector<int> to_destination(at(network_.world_size), kUnreachable);
    for (std::size_t rank = 0; rank < to_destination.size(); ++rank) {
      for (const Rank destination : seed.destinations) {
        to_destination[rank] = std::min(to_destination[rank], distance_[rank][at(destination)]);
      }
    }
    for (std::size_t w = 0; w < network_.ways.size(); ++w) {
      const Way& way = network_.ways[w];
      if (way.dst == seed.origin) continue;
      for (int step = from_origin[at(way.src)] + 1;
           step + to_destination[at(way.dst)] <= shape_.steps; ++step) {
        snd[w][at(step)] = fresh(context_);
        ++literals_;
      }
    }
    for (Rank rank = 0; rank < network_.world_size; ++rank) {
      if (rank == seed.origin) continue;
      for (int step = from_origin[at(rank)]; step < shape_.steps; ++step) {
        has[at(rank)][at(step)] = fresh(context_);
        ++literals_;
      }
    }
  }

  void flow(z3::solver& solver, int s) {
    const Seed& seed = problem_.seeds[at(s)];
    for (Rank rank = 0; rank < network_.world_size; ++rank) {
      if (rank == seed.origin) continue;
      Sum arrivals(context_);
      for (int step = 1; step <= shape_.steps; ++step) arrive(solver, s, rank, step, arrivals);
      if (std::binary_search(seed.destinations.begin(), seed.destinations.end(), rank)) {
        solver.add(arrivals.empty() ? context_.bool_val(false) : arrivals.exactly(1));
      } else if (!arrivals.empty()) {
        solver.add(arrivals.at_most(1));
      }
    }
  }

  /// What comes to `rank` in `step` is where it comes from, and `rank` has what came. Adds the
  /// literals of what can come to `arrivals`.
  void arrive(z3::solver& solver, int s, Rank rank, int step, Sum& arrivals) {
    const auto& has = has_[at(s)];
    const auto& before = has[at(rank)][at(step) - 1];
    const auto& after = has[at(rank)][at(step)];
    z3::expr_vector reasons(context_);
    for (const int way : network_.in[at(rank)]) {
      const auto& literal = snd_[at(s)][at(way)][at(step)];
      if (!literal) continue;
      reasons.push_back(*literal);
      arrivals.add(*literal);
      if (after) solver.add(z3::implies(*literal, *after));
      if (before) solver.add(!*literal || !*before);
      const Rank src = network_.ways[at(way)].src;
      if (src == problem_.seeds[at(s)].origin) continue;
      const auto& there = has[at(src)][at(step) - 1];
      solver.add(there ? z3::implies(*literal, *there) : !*literal);
    }
    if (!after) return;
    if (before) {
      solver.add(z3::implies(*before, *after));
      reasons.push_back(*before);
    }
    solver.add(z3::implies(*after, z3::mk_or(reasons)));
  }

  void keep(z3::solver& solver, const Limit& limit, int step) {
    Sum load(context_);
    for (const auto& [way, times] : limit.crossed) {
      for (const auto& snd : snd_) {
        const auto& literal = snd[at(way)][at(step)];
        if (literal) load.add(*literal, times);
      }
    }
    rounds_.limit(solver, limit, step, std::move(load));
  }

  z3::context& context_;
  const Problem& problem_;
  const RoundNetwork& network_;
  Shape shape_;
  std::vector<std::vector<int>> distance_;
  std::vector<std::vector<Literals>> snd_;  // [seed][way][step]
  std::vector<std::vector<Literals>> has_;  // [seed][rank][step]
  StepRounds rounds_;
  long literals_ = 0;
};

}  // namespace

Solution ask(const Problem& problem, const Shape& shape, const Budget& budget, unsigned work) {
  Solution solution;
  solution.answer = check<Encoding>(
      problem, shape, budget, work,
      [&](const Encoding& encoding, const z3::model& model) { solution = encoding.read(model); });
  return solution;
}

}  // namespace chorus::synth::exact
