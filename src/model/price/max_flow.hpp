// Maximum flow and minimum cut between two nodes.
#pragma once

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

  /// The largest flow from `source` to `sink`, which must differ.
  double solve(int source, int sink);

  /// After solve(): by node, true if it can still be reached from the source. The arcs that leave
  /// this set are a minimum cut, and the set is the smallest such.
  [[nodiscard]] std::vector<char> source_side() const;
  /// After solve(): by node, true if the sink can still be reached from it. The arcs that enter
  /// this set are a minimum cut too, and the set is the smallest such.
  [[nodiscard]] std::vector<char> sink_side() const;

 private:
  struct Half {  // arc 2i and its reverse 2i + 1
    int dst = 0;
    double residual = 0;
  };
  bool find_levels();
  double push(int node, double limit);

  std::vector<std::vector<int>> out_;  // halves that leave each node
  std::vector<Half> halves_;
  std::vector<double> capacity_;  // by arc
  std::vector<int> level_;
  std::vector<std::size_t> next_;
  int source_ = 0;
  int sink_ = 0;
  double nothing_ = 0;
};

}  // namespace chorus
