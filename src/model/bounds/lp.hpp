// Linear programs, for the bounds alone.
#pragma once

#include <limits>
#include <memory>
#include <span>

namespace chorus {

/// max Σ objective·variable, subject to rows lower ≤ Σ coefficient·variable ≤ upper.
///
/// Rows may be added after a solution; the next one starts from it.
class LinearProgram {
 public:
  static constexpr double kInfinity = std::numeric_limits<double>::max();  // Clp's own
  struct Term {
    int variable = 0;
    double coefficient = 0;
  };

  LinearProgram();
  ~LinearProgram();

  /// Before the first row. Returns the variable's number.
  int add_variable(double lower, double upper, double objective);
  /// Returns the row's number.
  int add_row(double lower, double upper, std::span<const Term> terms);

  /// False if there is no optimum (it is infeasible, unbounded, or numerically hopeless).
  [[nodiscard]] bool maximize();

  [[nodiscard]] double value(int variable) const;
  /// How fast the objective grows with the row's limiting side; 0 for a row that does not limit.
  [[nodiscard]] double price(int row) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace chorus
