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

/// Adds the group with the most that was seen to cross its trunk each way, if anything was.
void add_group(HostTree& tree, const Hosts& hosts, std::span<const Experiment> experiments);
/// Sets the core to the most that was seen to cross it.
void set_core(HostTree& tree, std::span<const Experiment> experiments);

/// Mean size of the logarithm of predicted over measured rate, over all experiments: 0.1 is 10 %.
/// Not squared, so that a few disturbed flows do not outweigh all others.
[[nodiscard]] double misfit(const HostTree& tree, std::span<const Experiment> experiments);

}  // namespace chorus::probing
