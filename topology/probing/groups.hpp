// Which hosts may stand together behind a trunk, by measured rates.
#pragma once

#include <span>
#include <vector>

#include "topology/probing/host_tree.hpp"

namespace chorus::probing {

/// Rates that differ by less than this share are taken for one: what a busy machine's
/// measurements scatter.
inline constexpr double kSame = 0.75;

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

/// Groups that explain best why many flows at once are slower than cables, though each pair alone
/// is not: hosts behind a trunk that carries less than their cables together. Those of `given`, as
/// far as they help, and up to `most` more; sorted. None where one core explains as much.
///
/// A beam search by misfit(), from `given` without its core (trunks of many hosts that are slow
/// together look like one) and from cables alone (a group that was found first may be the wrong
/// one).
[[nodiscard]] std::vector<std::vector<int>> oversubscribed_groups(
    const HostTree& given, std::span<const Experiment> experiments, int most);

}  // namespace chorus::probing
