#include "synth/exact/trees_encoding.hpp"

#include <utility>

#include "synth/exact/terms.hpp"

namespace chorus::synth::exact {
namespace {

/// The literals of one chunk.
struct Trees {
  using ByStep = std::vector<z3::expr>;  // [step], 0 is before the first

  std::vector<z3::expr> root;     ///< [rank] the chunk is finished here
  std::vector<ByStep> reduce;     ///< [way]
  std::vector<ByStep> copy;       ///< [way]
  std::vector<ByStep> has_sent;   ///< [rank] its share, on to the root
  std::vector<ByStep> has_whole;  ///< [rank] the finished chunk
};

class TreesEncoding {
 public:
  TreesEncoding(z3::context& context, const Problem& problem, const Shape& shape)
      : context_(context),
        problem_(problem),
        network_(*problem.network),
        shape_(shape),
        rounds_(context, shape) {}

  bool assert_into(z3::solver& solver, const Budget& budget) {
    const auto of_seed =
        static_cast<long>(network_.ways.size() + at(network_.world_size)) * 2 * (shape_.steps + 1);
    if (of_seed * static_cast<long>(problem_.seeds.size()) > kMostLiterals) return false;
    rounds_.assert_into(solver);
    for (std::size_t s = 0; s < problem_.seeds.size(); ++s) trees_.push_back(literals());
    for (const Trees& trees : trees_) {
      if (budget.spent()) return false;
      Sum roots(context_);
      for (const z3::expr& root : trees.root) roots.add(root);
      solver.add(roots.exactly(1));
      for (Rank rank = 0; rank < network_.world_size; ++rank) {
        reduce(solver, trees, rank);
        copy(solver, trees, rank);
      }
    }
    for (const Limit& limit : problem_.limits) {
      for (int step = 1; step <= shape_.steps; ++step) {
        Sum load(context_);
        for (const auto& [way, times] : limit.crossed) {
          for (const Trees& trees : trees_) {
            load.add(trees.reduce[at(way)][at(step)], times);
            load.add(trees.copy[at(way)][at(step)], times);
          }
        }
        rounds_.limit(solver, limit, step, std::move(load));
      }
    }
    return !budget.spent();
  }

  [[nodiscard]] Solution read(const z3::model& model) const {
    Solution solution;
    solution.answer = Answer::found;
    const auto add = [&](const z3::expr& literal, std::size_t s, std::size_t w, int step,
                         Action action) {
      if (!model.eval(literal, true).is_true()) return;
      solution.sends.push_back({static_cast<int>(s), static_cast<int>(w), step - 1, action});
    };
    for (int step = 1; step <= shape_.steps; ++step) {
      for (std::size_t s = 0; s < trees_.size(); ++s) {
        for (std::size_t w = 0; w < network_.ways.size(); ++w) {
          add(trees_[s].reduce[w][at(step)], s, w, step, Action::reduce);
          add(trees_[s].copy[w][at(step)], s, w, step, Action::copy);
        }
      }
    }
    return solution;
  }

 private:
  [[nodiscard]] Trees literals() const {
    const auto by_step = [&](std::size_t count) {
      std::vector<Trees::ByStep> result(count);
      for (std::size_t i = 0; i < count; ++i) {
        for (int step = 0; step <= shape_.steps; ++step) {
          result[i].push_back(fresh(context_));
        }
      }
      return result;
    };
    const std::size_t ranks = at(network_.world_size);
    const std::size_t ways = network_.ways.size();
    Trees trees{{}, by_step(ways), by_step(ways), by_step(ranks), by_step(ranks)};
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      trees.root.push_back(fresh(context_));
    }
    return trees;
  }

  /// Every rank but the root sends its share once, after all that comes to it.
  void reduce(z3::solver& solver, const Trees& trees, Rank rank) {
    const Trees::ByStep& sent = trees.has_sent[at(rank)];
    solver.add(!sent[0]);
    Sum once(context_);
    once.add(trees.root[at(rank)]);
    for (int step = 1; step <= shape_.steps; ++step) {
      z3::expr_vector reasons(context_);
      reasons.push_back(sent[at(step) - 1]);
      for (const int way : network_.out[at(rank)]) {
        const z3::expr& literal = trees.reduce[at(way)][at(step)];
        once.add(literal);
        reasons.push_back(literal);
      }
      solver.add(sent[at(step)] == z3::mk_or(reasons));
      for (const int way : network_.in[at(rank)]) {
        const z3::expr& arrives = trees.reduce[at(way)][at(step)];
        solver.add(!arrives || !sent[at(step)]);
        // The root's is the whole only once nothing more comes: this step's counts, a later not.
        solver.add(!arrives || !trees.root[at(rank)] || !trees.has_whole[at(rank)][at(step) - 1]);
      }
    }
    solver.add(once.exactly(1));
  }

  /// Every rank but the root gets the whole once, from one that has it.
  void copy(z3::solver& solver, const Trees& trees, Rank rank) {
    const Trees::ByStep& whole = trees.has_whole[at(rank)];
    Sum once(context_);
    once.add(trees.root[at(rank)]);
    solver.add(z3::implies(whole[0], trees.root[at(rank)]));
    for (int step = 1; step <= shape_.steps; ++step) {
      z3::expr_vector reasons(context_);
      reasons.push_back(whole[at(step) - 1]);
      reasons.push_back(trees.root[at(rank)]);
      for (const int way : network_.in[at(rank)]) {
        const z3::expr& literal = trees.copy[at(way)][at(step)];
        once.add(literal);
        reasons.push_back(literal);
        solver.add(z3::implies(literal, whole[at(step)]));
        solver.add(!literal || !whole[at(step) - 1]);
        const Rank src = network_.ways[at(way)].src;
        solver.add(z3::implies(literal, trees.has_whole[at(src)][at(step) - 1]));
      }
      solver.add(z3::implies(whole[at(step) - 1], whole[at(step)]));
      solver.add(z3::implies(whole[at(step)], z3::mk_or(reasons)));
    }
    solver.add(once.exactly(1));
  }

  z3::context& context_;
  const Problem& problem_;
  const RoundNetwork& network_;
  Shape shape_;
  StepRounds rounds_;
  std::vector<Trees> trees_;  // [seed]
};

}  // namespace

Solution ask_trees(const Problem& problem, const Shape& shape, const Budget& budget,
                   unsigned work) {
  Solution solution;
  solution.answer = check<TreesEncoding>(
      problem, shape, budget, work, [&](const TreesEncoding& encoding, const z3::model& model) {
        solution = encoding.read(model);
      });
  return solution;
}

}  // namespace chorus::synth::exact
