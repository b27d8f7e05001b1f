// Maximum flow and minimum cut between two nodes.
#pragma once

#include <limits>
#include <vector>

namespace chorus {

/// Dinic's algorithm on real capacities.
///
/// Residuals below 10⁻¹² of the largest capacity count as none, so the answers are good to about
/// that. Arcs keep their capacities between calls: solve() may be asked for one pair after another.
class MaxFlow {
 public:
  explicit MaxFlow(int num_nodes);

  /// Returns the arc's number, for set_capacity().
  int add_arc(int src, int dst, double capacity);
  void set_capacity(int arc, double capacity);

  /// The largest flow from `source` to `sink`, which must differ; or `enough`, if that is less.
  double solve(int source, int sink, double enough = std::numeric_limits<double>::infinity());

  /// After a solve() that has not found enough: by node, true if it can still be reached from the
  /// source. The arcs that leave this set are a minimum cut, and the set is the smallest such.
  [[nodiscard]] std::vector<char> source_side() const;
  /// After such a solve(): by node, true if the sink can still be reached from it. The arcs that
  /// enter this set are a minimum cut too, and the set is the smallest such.
  [[nodiscard]] std::vector<char> sink_side() const;

 private:
  /// What leaves a node: an arc, or what of an arc into it can be taken back.
  struct Half {
    int dst = 0;
    int reverse = 0;  ///< among the halves that leave dst
    double residual = 0;
  };
  struct Place {
    int node = 0;
    int half = 0;
  };
  bool find_levels();
  double push(int node, double limit);

  std::vector<std::vector<Half>> out_;  // by node
  std::vector<Place> place_;            // by arc
  std::vector<double> capacity_;        // by arc
  std::vector<int> level_;
  std::vector<std::size_t> next_;
  std::vector<int> queue_;
  int source_ = 0;
  int sink_ = 0;
  double nothing_ = 0;
};

}  // namespace chorus
