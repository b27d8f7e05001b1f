// The network of a wiring that repeats itself, folded: one cell stands for all.
#pragma once

#include <optional>

#include "model/price/cost.hpp"
#include "model/schedule/automorphism.hpp"
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

  [[nodiscard]] const Cells& cells() const { return folded_.cells(); }
  /// World size is that of the topology; only ranks of cell 0 have edges that leave them.
  [[nodiscard]] const Network& folded() const { return folded_; }
  /// What simulate() gives for the whole of a schedule with this symmetry, but for the order of
  /// what happens at the same time. Nothing if a transfer is no edge, or the symmetry another.
  /// Infinite as soon as it is certain to be more than `give_up_s`.
  [[nodiscard]] std::optional<double> simulated_seconds(const Schedule& schedule, double size_bytes,
                                                        double give_up_s) const;

 private:
  explicit RepeatedNetwork(Network folded) : folded_(std::move(folded)) {}

  Network folded_;
  Topology orbits_;            // a link for each orbit, and one for its messages if they cost
  std::vector<Route> routes_;  // by edge: orbits, each as often as a member is crossed
};

}  // namespace chorus::synth
