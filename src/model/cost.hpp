// Prices and times schedules on a topology.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "chorus/schedule.hpp"
#include "chorus/topology.hpp"

namespace chorus {

/// Paths between ranks, computed once per topology.
///
/// The route of (src, dst) is the path of least alpha, then most bandwidth, whose inner nodes carry
/// no rank; only where none exists may it pass through nodes of other ranks.
class Routes {
 public:
  explicit Routes(const Topology& topology);

  /// Links from rank src to rank dst, in order; empty if they are not connected (or equal, or on
  /// one node).
  [[nodiscard]] const std::vector<int>& path(Rank src, Rank dst) const;
  [[nodiscard]] bool connected(Rank src, Rank dst) const;
  /// Sum of alpha along the path, seconds.
  [[nodiscard]] double alpha_s(Rank src, Rank dst) const;

 private:
  int world_size_ = 0;
  std::vector<std::vector<int>> paths_;  // [src · world_size + dst]
  std::vector<double> alpha_s_;
  std::vector<char> connected_;
};

/// Predicted seconds of one collective: per step the longest alpha of its routes plus the bytes on
/// its most loaded link or port group, summed over the steps (SCCL's cost, with port groups).
///
/// `size_bytes` counts as PlanEntry does. Throws TopologyError naming a pair that is not connected.
struct Cost {
  double alpha_s = 0;          ///< sum over steps
  double beta_s_per_byte = 0;  ///< seconds per byte of size_bytes, sum over steps
  [[nodiscard]] double seconds(double size_bytes) const {
    return alpha_s + beta_s_per_byte * size_bytes;
  }
};
[[nodiscard]] Cost cost(const Schedule& schedule, const Topology& topology, const Routes& routes);

/// One transfer as it happened in a simulation.
struct TimelineEntry {
  int step = 0;
  Transfer transfer;
  double begin_s = 0;
  double end_s = 0;

  bool operator==(const TimelineEntry&) const = default;
};

struct Simulation {
  double seconds = 0;                   ///< when the last transfer ends
  std::vector<TimelineEntry> timeline;  ///< in order of begin_s, ties by schedule order
  std::vector<double> link_busy_s;      ///< per topology link
};

/// Discrete-event replay: a transfer begins when its source holds what it sends (and, for a
/// reduction, not before the destination's own value of that step) and shares every link and port
/// group of its route fairly (max-min) with the other transfers under way. No step barrier.
[[nodiscard]] Simulation simulate(const Schedule& schedule, const Topology& topology,
                                  const Routes& routes, double size_bytes);

}  // namespace chorus
