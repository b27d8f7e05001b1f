// The rows of a timeline: what a simulation used, how much, and when.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "model/price/cost.hpp"

namespace chorus {

/// A number per interval of time, all of one length, from 0 to the end of the simulation.
class Course {
 public:
  static constexpr int kCells = 200;

  explicit Course(double seconds = 1)
      : seconds_(seconds), whole_(kCells + 1, 0), part_(kCells, 0) {}

  /// `amount` comes evenly over [begin_s, end_s].
  void add(double begin_s, double end_s, double amount);
  /// The mean rate, in amount per second, within each cell.
  [[nodiscard]] std::vector<double> rates() const;

 private:
  double seconds_;
  std::vector<double> whole_;  // differences of the rate over whole cells
  std::vector<double> part_;   // amounts in cells that are covered in part
};

struct TimelineRow {
  std::string label;
  std::string detail;      ///< rate and type, for a tooltip
  int members = 1;         ///< resources in the row
  double use = 0;          ///< mean of them over all the time, [0, 1]
  double busiest = 0;      ///< use of the busiest
  bool slow = false;       ///< far below its peers (slow_links)
  std::vector<int> links;  ///< who crosses one of these uses the row
  Course course;           ///< of the use
};

/// What a schedule does, of one kind: "reduce over nvlink".
struct TimelinePhase {
  std::string label;
  double share = 0;  ///< of all bytes
  Course course;     ///< of bytes
};

struct TimelineRows {
  std::vector<TimelinePhase> phases;
  std::vector<TimelineRow> rows;
  std::vector<std::vector<int>> rows_of_link;  ///< by link of the topology
};

/// Everything that `simulation` used, in at most `most_rows` rows: adapters, switches, port groups,
/// links. What is too many is folded with its like within a host, then over all hosts.
[[nodiscard]] TimelineRows timeline_rows(const Simulation& simulation, const Topology& topology,
                                         const Routes& routes, double chunk_bytes,
                                         std::size_t most_rows);

}  // namespace chorus
