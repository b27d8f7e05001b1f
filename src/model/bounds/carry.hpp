// A linear program over what each link carries.
#pragma once

#include <vector>

#include "model/bounds/lp.hpp"
#include "model/bounds/network.hpp"

namespace chorus::bounds {

/// Cutting planes: how much each link carries is a variable, switches pass on exactly what they
/// take in, port groups are rows, and every cut that a maximum flow finds wanting becomes a row.
class CarryProgram {
 public:
  explicit CarryProgram(const Network& network);

  /// The arcs together carry at least weight·x. Returns the requirement's number.
  int require(const std::vector<int>& arcs, double weight);
  /// The same of all arcs that leave `side`.
  void require_cut(const std::vector<char>& side, double weight);

  /// Finds the largest x.
  void solve();
  [[nodiscard]] double rate() const { return program_.value(rate_); }
  /// With some of the cuts the rate is above the one with all of them, so it is a limit in every
  /// round. Where the last 24 have taken less than a thousandth off it, hundreds would follow, each
  /// longer.
  [[nodiscard]] bool hardly_falls() const;
  /// By arc: what it carries in the mean of the solutions so far, the latest counting most. Each
  /// solution is a corner, which puts the load on some of many hosts that are alike and is mended
  /// by moving it to others. What the mean lacks, all of them lack.
  [[nodiscard]] const std::vector<double>& mean() const { return mean_; }
  [[nodiscard]] double carried(int arc) const;
  [[nodiscard]] bool limits(int requirement) const;

  /// Says which cut limits, preferring one that explains the rate by itself.
  void explain(Rate& rate) const;

 private:
  struct Cut {
    std::vector<char> side;
    double weight = 0;
    int requirement = 0;
  };
  void add_balance(int node);
  [[nodiscard]] bool crosses(int group, const std::vector<int>& arcs) const;

  const Network& network_;
  LinearProgram program_;
  int rate_ = 0;
  std::vector<double> rates_;  // by round
  std::vector<double> mean_;   // by arc
  std::vector<int> group_rows_;
  std::vector<int> rows_;  // of requirements
  std::vector<Cut> cuts_;
};

}  // namespace chorus::bounds
