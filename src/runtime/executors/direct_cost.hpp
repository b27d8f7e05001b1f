// What calls and messages cost ranks that share memory.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "model/price/price.hpp"
#include "model/program/direct.hpp"
#include "topology/discover/cpu_place.hpp"
#include "topology/discover/host_rates.hpp"
#include "transports/link/link.hpp"

namespace chorus {

/// The machine that all ranks of a communicator share.
struct SharedMachine {
  int cores = 1;  ///< that the ranks may run on, together
  HostRates rates = assumed_host_rates();
  std::vector<CpuPlace> places = {};  ///< by rank, as far as they are known; empty: nowhere
  double slot_bytes = 131'072;        ///< of one tile of a collective
};

/// What one rank moves in a call: in bytes, or in chunks of its schedule.
struct RankLoad {
  double staged = 0;  ///< of its input, that others read
  /// Of others' inputs, by Distance.
  std::array<double, kNumDistances> fetched = {};
  double placed = 0;     ///< copied from its own memory: to itself, and into slots for others
  double collected = 0;  ///< of its output, that others left in slots
};
/// Of the direct form of a schedule, one program per rank: by rank, in chunks. `places` as
/// SharedMachine.
[[nodiscard]] std::vector<RankLoad> loads_of(std::span<const DirectProgram> programs,
                                             std::span<const CpuPlace> places);

/// How long the ranks of a call take for what they read of each other's ordinary buffers.
struct CopyTimes {
  double staged_s = 0;  ///< through slots: each stages what others read
  double kernel_s = 0;  ///< by the kernel; infinite where it copies nothing

  [[nodiscard]] bool kernel_pays() const { return kernel_s < staged_s; }
};
/// What is copied either way does not count. `unit_bytes`: of what loads are given in. `folds`:
/// what the kernel reads is folded tile by tile, and not copied to its place at once.
[[nodiscard]] CopyTimes copy_times(const SharedMachine& machine, std::span<const RankLoad> loads,
                                   double unit_bytes = 1, bool folds = false);

/// Of messages between the ranks farthest apart, up to a slot.
[[nodiscard]] MessageCopiesBySize message_copies(const SharedMachine& machine);

/// Of the direct form of a schedule, one program per rank, with ordinary buffers: hand-offs one
/// after the other, and the copies of the busiest rank, by the kernel where that pays; where ranks
/// outnumber the cores, the copies of all ranks over the cores.
[[nodiscard]] Price direct_price(std::span<const DirectProgram> programs,
                                 const SharedMachine& machine);

/// Of a schedule that runs as messages, ordinary buffers likewise: `alpha_s`, what its steps take
/// of the Topology (cost()), and the copies of the busiest rank, near and far.
[[nodiscard]] Price message_price(const Schedule& schedule, double alpha_s,
                                  const SharedMachine& machine);

}  // namespace chorus
