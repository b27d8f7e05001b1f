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
  /// unequal. Those of a folded network are its cell and what cells are moved by.
  explicit Levels(const Network& network);

  /// Innermost first; the product is the world size. Never empty.
  [[nodiscard]] const std::vector<int>& sizes() const { return sizes_; }
  [[nodiscard]] int count() const { return static_cast<int>(sizes_.size()); }
  [[nodiscard]] int digit(Rank rank, int level) const;
  /// The rank that differs from `rank` in the digit of `level` alone.
  [[nodiscard]] Rank with_digit(Rank rank, int level, int digit) const;
  /// Units of level `first` in one of level `last`.
  [[nodiscard]] int units(int first, int last) const;
  /// The digits of `by` added to those of `rank` from level `first` on, each wrapping.
  [[nodiscard]] Rank moved(Rank rank, int first, int by) const;
  /// Ranks in the order of their digits, level 0 least significant.
  [[nodiscard]] const std::vector<Rank>& ranks() const { return rank_at_; }
  /// The ranks of the innermost part that `rank` is in, by their digit 0.
  [[nodiscard]] std::vector<Rank> inner_part(Rank rank) const;

 private:
  void from_cells(const Cells& cells);
  void from_latencies(const Network& network);

  std::vector<int> sizes_;
  std::vector<int> position_;  // by rank: the number its digits make, level 0 least significant
  std::vector<Rank> rank_at_;  // the inverse
};

}  // namespace chorus::synth
