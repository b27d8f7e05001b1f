// Execution plans of MSCCL++, in JSON; only written.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "chorus/schedule.hpp"

namespace chorus::formats {

struct MscclppOptions {
  std::uint64_t min_bytes = 0;
  std::uint64_t max_bytes = std::numeric_limits<std::uint64_t>::max();
};

/// The threadblocks of to_msccl_xml() over memory channels: every message is put into a place of
/// its own in the receiver's scratch and signalled there. Out of place.
///
/// Ops used: put, signal, wait, copy, re, nop, sem_acquire, sem_release. Throws InputError for
/// other collectives than all_reduce, all_gather, reduce_scatter and all_to_all (the loader needs
/// input and output on all ranks).
[[nodiscard]] std::string to_mscclpp_plan(const Schedule& schedule,
                                          const MscclppOptions& options = {});

}  // namespace chorus::formats
