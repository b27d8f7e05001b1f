// What calls and messages cost ranks that share memory.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "model/direct.hpp"
#include "model/price.hpp"
#include "topology/host_rates.hpp"
#include "transports/link.hpp"

namespace chorus {

/// Ranks up to which each may look at the offers of all others: beyond, that takes longer than the
/// logarithmic number of messages of a tree.
inline constexpr int kMostFlat = 16;

/// The machine that all ranks of a communicator share.
struct SharedMachine {
  int cores = 1;  ///< that the ranks may run on, together
  HostRates rates = assumed_host_rates();
  double slot_bytes = 131'072;  ///< of one tile of a collective
};

/// What one rank moves in a call.
struct RankLoad {
  double staged_bytes = 0;   ///< that others read
  double fetched_bytes = 0;  ///< that it reads of others
};

/// Whether a call ends earlier if ranks read each other's ordinary buffers by the kernel than if
/// each stages what others read.
[[nodiscard]] bool kernel_copies_pay(const SharedMachine& machine,
                                     const std::vector<RankLoad>& ranks);

/// Messages that arrive earlier, one alone and many in a row, if the receiver reads them by the
/// kernel. None is longer than a slot.
[[nodiscard]] MessageSizes kernel_message_sizes(const SharedMachine& machine, int ranks);

/// Of the direct form of a schedule, one program per rank, with ordinary buffers: hand-offs one
/// after the other, and the copies of the busiest rank, by the kernel where that pays; where ranks
/// outnumber the cores, the copies of all ranks over the cores.
[[nodiscard]] Price direct_price(std::span<const DirectProgram> programs,
                                 const SharedMachine& machine);

}  // namespace chorus
