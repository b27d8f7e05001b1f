// Groups of hosts, and what experiments say of the limits of a tree.
#pragma once

#include <span>
#include <vector>

#include "topology/probing/host_tree.hpp"

namespace chorus::probing {

using Hosts = std::vector<int>;  ///< ascending

[[nodiscard]] bool contains(const Hosts& group, int host);
/// Disjoint or one within the other.
[[nodiscard]] bool compatible(const Hosts& a, const Hosts& b);
/// At least two hosts on each side.
[[nodiscard]] bool worth_a_trunk(int hosts, const Hosts& group);
/// The side of the cut with fewer hosts; of equal ones the one without host 0.
[[nodiscard]] Hosts smaller_side(int hosts, Hosts group);

/// The most that two of `rates` agree on: disturbances slow down, and few of those that are slowed
/// say the same, while a queue that drains late makes one alone too fast. Without such two the
/// greatest of all; 0 of none.
[[nodiscard]] double agreed(std::vector<double> rates);

/// Whether a trunk before the group is worth looking for beside those of `tree`, and compatible()
/// with them.
[[nodiscard]] bool fits(const HostTree& tree, const Hosts& group);

/// Adds the group with what is agreed to have crossed its trunk each way, if anything has.
void add_group(HostTree& tree, const Hosts& hosts, std::span<const Experiment> experiments);
/// Sets the core to what is agreed to have crossed it.
void set_core(HostTree& tree, std::span<const Experiment> experiments);

/// How many times as fast some flows of an experiment could have been together within `limits`, if
/// all others had gone as measured; 1 where each of them fills one.
///
/// How flows share what limits them is their own affair (TCP is not fair), but one that fills no
/// limit at all was stopped by something that is not among them.
[[nodiscard]] double room(std::span<const Limit> limits, std::span<const double> bytes_per_s,
                          std::span<const int> flows);

/// Whether the flow was much slower than its way back at the same time, and says nothing for that:
/// acknowledgements stand in the queue of the way back.
[[nodiscard]] bool waited_for_way_back(const Experiment& e, std::size_t flow);

/// How far a tree is from what was measured, with one group more or without. All that the tree's
/// own limits say is the same for each group that is tried. Keeps references to both.
class Misfit {
 public:
  Misfit(const HostTree& tree, std::span<const Experiment> experiments);

  /// Mean size of the logarithm of what the fullest limit of a flow carries over what it may, over
  /// all flows measured that did not wait for their way back: 0.1 is 10 %. Not squared, so that a
  /// few disturbed flows do not outweigh all others.
  [[nodiscard]] double alone() const;
  /// The same of the tree that add_group() makes, if it has no core.
  [[nodiscard]] double with(const Hosts& group) const;

 private:
  const HostTree& tree_;
  std::span<const Experiment> experiments_;
  std::vector<double> fullness_;  // of the fullest limit of each flow in turn; 0: no evidence
};

[[nodiscard]] inline double misfit(const HostTree& tree, std::span<const Experiment> experiments) {
  return Misfit(tree, experiments).alone();
}

}  // namespace chorus::probing
