#include "model/bounds_lp.hpp"

#include <ClpSimplex.hpp>
#include <cmath>
#include <cstddef>
#include <vector>

namespace chorus {

struct LinearProgram::Impl {
  ClpSimplex clp;
  std::vector<double> lower, upper, objective;  // of variables
  // Rows not yet given to clp, one after the other.
  std::vector<double> row_lower, row_upper, coefficients;
  std::vector<CoinBigIndex> starts{0};
  std::vector<int> variables;
  int num_rows = 0;
  bool solved_before = false;
};

LinearProgram::LinearProgram() : impl_(std::make_unique<Impl>()) {
  impl_->clp.setLogLevel(0);
  impl_->clp.setOptimizationDirection(-1);
}

LinearProgram::~LinearProgram() = default;

int LinearProgram::add_variable(double lower, double upper, double objective) {
  impl_->lower.push_back(lower);
  impl_->upper.push_back(upper);
  impl_->objective.push_back(objective);
  return static_cast<int>(impl_->lower.size()) - 1;
}

int LinearProgram::add_row(double lower, double upper, std::span<const Term> terms) {
  for (const Term& term : terms) {
    impl_->variables.push_back(term.variable);
    impl_->coefficients.push_back(term.coefficient);
  }
  impl_->starts.push_back(static_cast<CoinBigIndex>(impl_->variables.size()));
  impl_->row_lower.push_back(lower);
  impl_->row_upper.push_back(upper);
  return impl_->num_rows++;
}

bool LinearProgram::maximize() {
  Impl& now = *impl_;
  if (!now.solved_before) {
    now.clp.addColumns(static_cast<int>(now.lower.size()), now.lower.data(), now.upper.data(),
                       now.objective.data(), nullptr, nullptr, nullptr);
  }
  now.clp.addRows(static_cast<int>(now.row_lower.size()), now.row_lower.data(),
                  now.row_upper.data(), now.starts.data(), now.variables.data(),
                  now.coefficients.data());
  now.row_lower.clear();
  now.row_upper.clear();
  now.starts.assign(1, 0);
  now.variables.clear();
  now.coefficients.clear();
  if (now.solved_before) {
    now.clp.dual();
  } else {
    // Presolve saves up to 40 times the time (fat-tree:16x8,over=2, all_to_all), but its step for
    // rows of two variables leaks (Clp 1.17) and saves nothing here.
    ClpSolve options;
    options.setDoDoubleton(false);
    now.clp.initialSolve(options);
  }
  now.solved_before = true;
  return now.clp.isProvenOptimal();
}

double LinearProgram::value(int variable) const {
  return impl_->clp.primalColumnSolution()[variable];
}

double LinearProgram::price(int row) const { return std::abs(impl_->clp.dualRowSolution()[row]); }

}  // namespace chorus
