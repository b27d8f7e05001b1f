// Lower bounds: what no schedule of messages can beat on a topology whose switches neither combine
// nor copy, and which cut says so.
#pragma once

#include <string>
#include <vector>

#include "chorus/schedule.hpp"
#include "chorus/topology.hpp"

namespace chorus {

/// What a collective costs at least on a topology (docs/bounds.md derives the formulas).
struct Bound {
  /// Seconds per byte of the collective's size (PlanEntry's counting): time ≥ this · size.
  double seconds_per_byte = 0;
  /// 1 / seconds_per_byte in GB/s (10⁹ B/s); infinite for one rank.
  [[nodiscard]] double algbw_gb_s() const;
  /// Seconds that even an empty message takes: the alpha of the longest necessary path.
  double latency_s = 0;
  /// Steps (rank-to-rank hops) that some chunk needs: the diameter between ranks. Rooted kinds: the
  /// hops from or to the root.
  int steps = 0;
  /// How the bandwidth figure was found: "max-flow", "max-flow and LP", "LP", "min cut", "volume",
  /// "prices", "shortest paths", "latency only", …
  std::string method = {};
  /// True if schedules reach it in the limit of many chunks (all_gather, reduce_scatter, broadcast,
  /// reduce, gather, scatter and all_to_all by theory; all_reduce where reduce-scatter followed by
  /// all-gather does); false if it is only known to be a limit.
  bool tight = false;
  /// all_reduce alone: seconds per byte of the best reduce-scatter followed by the best all-gather,
  /// which schedules reach. The optimum lies between seconds_per_byte and this. 0 for other kinds.
  double reduce_scatter_all_gather = 0;
  /// all_reduce where there are switches: seconds per byte by the cuts alone, which hold also for
  /// switches that combine and copy what passes (NVLS, SHARP). Such machines may beat
  /// seconds_per_byte, which does not, by the volume of messages. 0 where no switch is.
  double switches_reducing = 0;
  /// The limiting cut: the ranks on its source side, and the links and port groups that cross it.
  /// No ranks where the limit is a set of links and groups that is no single cut.
  std::vector<Rank> cut_ranks = {};
  std::vector<int> cut_links = {};
  std::vector<int> cut_port_groups = {};
  std::string cut = {};  ///< the cut in words: "into gpu0: 6 nvlink, 150 GB/s"

  /// So many ranks are within a time of the best placed one.
  struct Reached {
    double after_s = 0;
    int ranks = 1;
  };
  /// Small and middle sizes: a message that crosses a cut brings what could be combined before it
  /// left to those that it can be handed on to afterwards, and both take time (docs/bounds.md). Or,
  /// without ranks: what moves at all has the latency of a first hop before it.
  struct Crossing {
    double alpha_s = 0;                ///< of the shortest hop across
    double pairs_s_per_byte = 0;       ///< to bring each far rank's share to each near rank alone
    std::vector<Reached> before = {};  ///< whose shares a message can hold; empty: one rank's
    std::vector<Reached> behind = {};  ///< to whom it can go on; empty: to one rank
    int far_ranks = 0, near_ranks = 0;

    /// What `size_bytes` takes at least.
    [[nodiscard]] double seconds(double size_bytes) const;
  };
  /// Across cuts: of all_reduce, all_gather and reduce_scatter alone.
  std::vector<Crossing> crossings = {};
  /// No schedule is faster: the largest of latency, bytes over bandwidth, and the crossings.
  [[nodiscard]] double seconds(double size_bytes) const;
};

/// Links are directed and data may be relayed by any node. Switches neither copy nor combine; a
/// port group carries every byte that crosses any of its links. Ranks on one node exchange data for
/// nothing. Deterministic.
///
/// Throws TopologyError naming two ranks that are not connected, InputError for a root that is no
/// rank.
[[nodiscard]] Bound lower_bound(const Topology& topology, Collective collective);

}  // namespace chorus
