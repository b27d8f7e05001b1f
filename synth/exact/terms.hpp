// What the encodings are made of: weighted sums, rounds, and a check that can be interrupted.
#pragma once

#include <fmt/format.h>
#include <z3++.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/index.hpp"
#include "chorus/error.hpp"
#include "synth/exact/encoding.hpp"
#include "synth/exact/watchdog.hpp"

namespace chorus::synth::exact {

/// Beyond so many literals Z3 takes longer than half a second to take them in, deaf to
/// interrupts, and has answered nothing yet.
inline constexpr long kMostLiterals = 250'000;

/// A new literal. Unnamed: names would take longer than all the rest.
inline z3::expr fresh(z3::context& context) {
  return {context, Z3_mk_fresh_const(context, nullptr, context.bool_sort())};
}

/// A sum of weighted literals.
class Sum {
 public:
  explicit Sum(z3::context& context) : terms_(context) {}
  void add(const z3::expr& literal, int weight = 1) {
    terms_.push_back(literal);
    weights_.push_back(weight);
    most_ += weight;
  }
  [[nodiscard]] bool empty() const { return weights_.empty(); }
  [[nodiscard]] int most() const { return most_; }
  [[nodiscard]] z3::expr at_most(int bound) const {
    return z3::pble(terms_, weights_.data(), bound);
  }
  [[nodiscard]] z3::expr exactly(int bound) const {
    return z3::pbeq(terms_, weights_.data(), bound);
  }
  [[nodiscard]] const z3::expr_vector& terms() const { return terms_; }

 private:
  z3::expr_vector terms_;
  std::vector<int> weights_;
  int most_ = 0;
};

/// How many rounds each step takes, in unary: literal k of a step says "at least k rounds".
class StepRounds {
 public:
  StepRounds(z3::context& context, const Shape& shape)
      : context_(context), shape_(shape), at_least_(at(shape.steps) + 1) {
    for (int step = 1; step <= shape.steps; ++step) {
      for (int k = 2; k <= shape.rounds_per_step; ++k) {
        at_least_[at(step)].push_back(fresh(context));
      }
    }
  }

  void assert_into(z3::solver& solver) const {
    Sum more(context_);
    for (const std::vector<z3::expr>& literals : at_least_) {
      for (std::size_t k = 0; k < literals.size(); ++k) {
        more.add(literals[k]);
        if (k > 0) solver.add(z3::implies(literals[k], literals[k - 1]));
      }
    }
    const int spare = shape_.rounds - shape_.steps;
    if (more.most() > spare) solver.add(more.at_most(spare));
  }

  /// `load` may be what the limit carries in the rounds of `step` (from 1): one sum for every
  /// number of rounds, in which what a round not taken would have carried counts as used.
  void limit(z3::solver& solver, const Limit& limit, int step, Sum load) const {
    if (load.empty() || load.most() <= limit.capacity(1)) return;
    for (int k = 2; k <= shape_.rounds_per_step; ++k) {
      const int gain = limit.capacity(k) - limit.capacity(k - 1);
      if (gain > 0) load.add(!at_least_[at(step)][at(k) - 2], gain);
    }
    solver.add(load.at_most(limit.capacity(shape_.rounds_per_step)));
  }

 private:
  z3::context& context_;
  Shape shape_;
  std::vector<std::vector<z3::expr>> at_least_;  // [step][k - 2]
};

/// Asserts an Encoding(context, problem, shape) and asks Z3; `read` gets the model, if there is
/// one.
template <class Encoding, class Read>
Answer check(const Problem& problem, const Shape& shape, const Budget& budget, unsigned work,
             const Read& read) {
  try {
    z3::context context;
    // The plain SMT core: its pseudo-Boolean propagation is what these problems need (QF_FD, which
    // turns sums into clauses, times out on most of them).
    z3::solver solver(context, z3::solver::simple());
    z3::params params(context);
    params.set("random_seed", static_cast<unsigned>(budget.seed));
    if (work > 0) params.set("rlimit", work);
    solver.set(params);
    // Z3 collects features of what is asserted before its first check, to configure itself; that
    // takes time quadratic in the literals (10.7 s of 11.9 s with 300,000 of them). So the first
    // check comes while there is next to nothing.
    solver.add(fresh(context));
    (void)solver.check();
    Encoding encoding(context, problem, shape);
    if (!encoding.assert_into(solver, budget)) return Answer::gave_up;
    const Watchdog watchdog(budget, [&] { context.interrupt(); });
    const z3::check_result result = solver.check();
    if (result == z3::unsat) return Answer::impossible;
    if (result == z3::unknown) return Answer::gave_up;
    read(encoding, solver.get_model());
    return Answer::found;
  } catch (const z3::exception& error) {
    // An interrupt that comes while Z3 prepares is thrown.
    if (budget.spent() || std::strstr(error.msg(), "cancel") != nullptr) return Answer::gave_up;
    throw SynthesisError(fmt::format("the solver Z3 failed: {}", error.msg()));
  }
}

}  // namespace chorus::synth::exact
