// From measured rates to the tree of switches that explains them.
#pragma once

#include <span>
#include <vector>

#include "topology/probing/host_tree.hpp"

namespace chorus::probing {

/// The experiments without rates that are twice those of the way back and that no other measurement
/// of the same host reaches: a host that was kept from its cores for a while sees what piled up
/// meanwhile arrive at once. Such rates become the host's next fastest.
[[nodiscard]] std::vector<Experiment> believable(int hosts,
                                                 std::span<const Experiment> experiments);

/// The tree that explains the experiments: of `groups`, those without which some measurement could
/// not be understood, with the rates of all cables and trunks. Pure: equal arguments, equal result.
/// Every host must occur in some experiment, or its cable gets the rate of the fastest.
[[nodiscard]] HostTree infer(int hosts, std::span<const Experiment> experiments,
                             const std::vector<std::vector<int>>& groups);

}  // namespace chorus::probing
