// One collective that only copies, or an all_reduce along trees, on one network: instances of it,
// with and without symmetry.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "synth/exact/encoding.hpp"

namespace chorus::synth::exact {

class SpreadSolver {
 public:
  /// `rounds_per_chunk`: by the bandwidth bound, for each of a block's chunks.
  SpreadSolver(RoundNetwork network, Collective collective, double rounds_per_chunk, bool symmetry);

  [[nodiscard]] const RoundNetwork& network() const { return network_; }
  /// Hops that some chunk needs.
  [[nodiscard]] int least_steps() const { return least_steps_; }
  [[nodiscard]] double rounds_per_chunk() const { return rounds_per_chunk_; }
  [[nodiscard]] int least_rounds(int chunks_per_block) const;
  [[nodiscard]] const Automorphisms& symmetries();

  [[nodiscard]] Result solve(int chunks_per_block, int steps, int rounds, const Budget& budget,
                             unsigned work);

 private:
  using Group = std::vector<Permutation>;
  struct Attempt {
    Group group;
    int rounds_per_step;
    bool proves;  ///< its "impossible" is one of the instance
    bool over;    ///< answered
  };

  [[nodiscard]] std::vector<Attempt> attempts(int chunks_per_block, int steps, int rounds);
  [[nodiscard]] Result expanded(const Problem& problem, const Solution& solution,
                                int chunks_per_block, int steps) const;

  RoundNetwork network_;
  Collective collective_;
  std::vector<Block> blocks_;
  double rounds_per_chunk_;
  bool symmetry_;
  int least_steps_ = 0;
  std::optional<Automorphisms> automorphisms_;
};

/// Rounds that each step needs: what its transfers load on the network's limits.
[[nodiscard]] std::vector<int> rounds_of(const RoundNetwork& network,
                                         const std::vector<Step>& steps);

}  // namespace chorus::synth::exact
