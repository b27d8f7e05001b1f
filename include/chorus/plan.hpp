// The Plan: which schedule to run for which collective and size, on one topology.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "chorus/schedule.hpp"
#include "chorus/topology.hpp"

namespace chorus {

/// One schedule and the sizes it is best for.
///
/// Size is the bytes of the whole collective as OMB and nccl-tests count them: the buffer for
/// all_reduce, reduce and broadcast; all n blocks for the others.
struct PlanEntry {
  std::uint64_t min_bytes = 0;  ///< inclusive
  std::uint64_t max_bytes = 0;  ///< inclusive; UINT64_MAX: no upper end
  Schedule schedule;            ///< rooted kinds: made for root 0, relabelled for the others
  double min_bytes_time_s = 0;  ///< predicted time at min_bytes
  double per_byte_time_s = 0;   ///< predicted slope within the range, seconds per byte

  bool operator==(const PlanEntry&) const = default;
};

/// For one Topology, the schedules to use by collective and size.
///
/// Every rank checks by hash that it holds the same plan before the first collective. Saved as
/// JSON (docs/formats.md).
struct Plan {
  std::string topology_fingerprint = {};
  /// The topology itself, to say how another one differs; without nodes if it was not kept.
  Topology topology = {};
  int world_size = 0;
  std::vector<PlanEntry> entries =
      {};  ///< sorted by (kind, min_bytes); ranges of one kind are disjoint

  bool operator==(const Plan&) const = default;
};

}  // namespace chorus
