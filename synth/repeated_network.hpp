// The network of a wiring that repeats itself, folded: one cell stands for all.
#pragma once

#include <optional>

#include "model/automorphism.hpp"
#include "model/cost.hpp"
#include "synth/network.hpp"

namespace chorus::synth {

/// Edges from the ranks of cell 0 to all ranks; each stands for its images under every move, taken
/// at the same time. Resources are orbits of links and port groups: each member is as busy as any
/// other. An edge names an orbit as often as one member carries a byte of one of its images, in
/// units of the least that any edge brings it, which Resource::beta_s_per_byte accounts for.
class RepeatedNetwork {
 public:
  /// Nothing if the wiring does not repeat itself, or where routes of equal length are not chosen
  /// alike from cell to cell.
  static std::optional<RepeatedNetwork> of(const Topology& topology);

  [[nodiscard]] const Cells& cells() const { return cells_; }
  /// World size is that of the topology; only ranks of cell 0 have edges that leave them.
  [[nodiscard]] const Network& folded() const { return folded_; }
  /// Index into folded().edges() of the edge that stands for the one from `src` to `dst`.
  [[nodiscard]] std::optional<int> edge(Rank src, Rank dst) const {
    const int by = cells_.cell_of(src);
    return folded_.edge(src % cells_.size(), cells_.minus(cells_.cell_of(dst), by) * cells_.size() +
                                                 dst % cells_.size());
  }

  /// What simulate() gives for the whole of a schedule with this symmetry, but for the order of
  /// what happens at the same time. Nothing if a transfer is no edge, or the symmetry another.
  [[nodiscard]] std::optional<double> simulated_seconds(const Schedule& schedule,
                                                        double size_bytes) const;

 private:
  explicit RepeatedNetwork(Cells cells) : cells_(std::move(cells)), folded_(0, {}, {}) {}

  Cells cells_;
  Network folded_;
  Topology orbits_;            // a link for each orbit, and one for its messages if they cost
  std::vector<Route> routes_;  // by edge: orbits, each as often as a member is crossed
};

}  // namespace chorus::synth
