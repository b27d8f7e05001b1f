// The hierarchy of a network: which ranks are near each other, level by level.
#pragma once

#include <vector>

#include "synth/network.hpp"

namespace chorus::synth {

/// Ranks as digits: at every level a unit of the level below (at level 0: a rank) is one of
/// `size` siblings. All units of a level are of one size.
class Levels {
 public:
  /// Groups ranks by latency: as the longest alpha an edge may have grows, the connected parts of
  /// the network merge; every set of equal parts that a clear gap in alpha (a third or more)
  /// separates from the next is a level. One level if there is no such gap or the parts are
  /// unequal.
  explicit Levels(const Network& network);

  /// Innermost first; the product is the world size. Never empty.
  [[nodiscard]] const std::vector<int>& sizes() const { return sizes_; }
  [[nodiscard]] int count() const { return static_cast<int>(sizes_.size()); }
  [[nodiscard]] int digit(Rank rank, int level) const;
  /// The rank that differs from `rank` in the digit of `level` alone.
  [[nodiscard]] Rank with_digit(Rank rank, int level, int digit) const;
  /// The ranks of the innermost part that `rank` is in, by their digit 0.
  [[nodiscard]] std::vector<Rank> inner_part(Rank rank) const;
  /// The longest alpha of an edge inside parts of `level`.
  [[nodiscard]] double alpha_s(int level) const {
    return alpha_s_[static_cast<std::size_t>(level)];
  }

 private:
  std::vector<int> sizes_;
  std::vector<double> alpha_s_;
  std::vector<int> position_;  // by rank: the number its digits make, level 0 least significant
  std::vector<Rank> rank_at_;  // the inverse
};

}  // namespace chorus::synth
