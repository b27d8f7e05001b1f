// From measured rates to the tree of switches that explains them.
#pragma once

#include <span>
#include <vector>

#include "topology/probing/host_tree.hpp"

namespace chorus::probing {

/// Rates that differ by less than this share are taken for one: what a busy machine's
/// measurements scatter.
inline constexpr double kSame = 0.75;

/// The experiments without rates that are twice those of the way back and that no other measurement
/// of the same host reaches: a host that was kept from its cores for a while sees what piled up
/// meanwhile arrive at once. Such rates become the host's next fastest.
[[nodiscard]] std::vector<Experiment> believable(int hosts,
                                                 std::span<const Experiment> experiments);

/// Hosts that send to each other as fast as either is ever seen to send: parts of all hosts, each
/// ascending, ordered by first host. Cables of one speed at one switch make one part; so do
/// switches whose trunks never limit a single pair.
[[nodiscard]] std::vector<std::vector<int>> near_hosts(int hosts,
                                                       std::span<const Experiment> experiments);

/// Groups that a trunk may lie before: the near ones, joined level by level from the fastest pair
/// down (single linkage; the rate of a pair is a bottleneck along a path, so it is an ultrametric).
/// Only those that leave at least two hosts on each side; the smaller side of each.
[[nodiscard]] std::vector<std::vector<int>> nested_groups(int hosts,
                                                          std::span<const Experiment> experiments);

/// Groups that could explain why many flows at once are slower than `tree` says, though each pair
/// alone is not: hosts behind a trunk that carries less than their cables together. At most
/// `most`, the most promising first.
[[nodiscard]] std::vector<std::vector<int>> oversubscribed_groups(
    const HostTree& tree, std::span<const Experiment> experiments, int most);

/// The tree that explains the experiments: of `groups`, those without which some measurement could
/// not be understood, with the rates of all cables and trunks. Pure: equal arguments, equal result.
/// Every host must occur in some experiment, or its cable gets the rate of the fastest.
[[nodiscard]] HostTree infer(int hosts, std::span<const Experiment> experiments,
                             const std::vector<std::vector<int>>& groups);

/// Mean size of the logarithm of predicted over measured rate, over all experiments: 0.1 is 10 %.
/// Not squared, so that a few disturbed flows do not outweigh all others.
[[nodiscard]] double misfit(const HostTree& tree, std::span<const Experiment> experiments);

/// The side of the cut with fewer hosts; of equal ones the one without host 0.
[[nodiscard]] std::vector<int> smaller_side(int hosts, std::vector<int> group);

}  // namespace chorus::probing
