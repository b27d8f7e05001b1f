// Lower bounds: what no schedule can beat on a topology, and which cut says so.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "chorus/schedule.hpp"
#include "chorus/topology.hpp"

namespace chorus {

struct Bound {
  /// Seconds per byte of the collective's size (PlanEntry's counting): time ≥ this · size.
  double seconds_per_byte = 0;
  /// 1 / seconds_per_byte in GB/s (10⁹ B/s); infinite for one rank.
  [[nodiscard]] double algbw_gb_s() const;
  /// Seconds that even an empty message takes: the alpha of the longest necessary path.
  double latency_s = 0;
  /// Steps (rank-to-rank hops) that some chunk needs: the diameter between ranks.
  int steps = 0;
  /// How the bandwidth figure was found: "max-flow", "LP", "min cut", "volume".
  std::string method;
  /// True if schedules reach it (all_gather, reduce_scatter, broadcast, all_to_all by theory);
  /// false if it is only known to be a limit (all_reduce, reduce on some graphs).
  bool tight = false;
  /// The limiting cut: the ranks on its source side, and the links and port groups that cross it.
  std::vector<Rank> cut_ranks;
  std::vector<int> cut_links;
  std::string cut;  ///< the cut in words: "into gpu0: 6 nvlink, 150 GB/s"
};

/// Throws TopologyError naming two ranks that are not connected.
[[nodiscard]] Bound lower_bound(const Topology& topology, Collective collective);

}  // namespace chorus
