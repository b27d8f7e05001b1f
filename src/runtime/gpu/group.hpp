// How a group of calls on GPU memory is cut into launches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/gpu/communicator.hpp"

namespace chorus {

/// Collectives in their order, without those of nothing; then messages (those of nothing too), in
/// an order that the ranks at both ends of each agree on. A rank may cut that anywhere into
/// launches and none waits for ever: of the messages that are not done yet, both ends of the first
/// one are in the launches that run.
[[nodiscard]] std::vector<DeviceCall> launch_order(std::span<const DeviceCall> group, Rank rank,
                                                   int world_size);

/// The number of first calls of `order` that one launch takes: at least one (a message to oneself
/// goes with its other end), and at most so many calls and works. A message needs `works_each`,
/// unless one to or from the same peer is there already.
[[nodiscard]] std::size_t first_launch(std::span<const DeviceCall> order, Rank rank,
                                       std::uint32_t most_works, std::uint32_t works_each);

}  // namespace chorus
