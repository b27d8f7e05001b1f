// What a plan is worth: its times beside the limits and what a ring and a tree would take. For the
// command and for perf/synthesis.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "chorus/plan.hpp"
#include "model/bounds/bounds.hpp"
#include "synth/plan.hpp"
#include "synth/sketch.hpp"

namespace chorus {

/// Classic schedules, the library's own strategies, and those that need a solver.
[[nodiscard]] std::vector<synth::Strategy> all_strategies();
/// "classic", "hierarchical", …: each once.
[[nodiscard]] std::vector<std::string> names_of(const std::vector<synth::Strategy>& strategies);

/// "4K", "1536", "32M"
[[nodiscard]] std::string size_text(std::uint64_t bytes);

/// Lower bounds of some collectives on one topology, each computed once.
class Limits {
 public:
  Limits(const Topology& topology, const std::vector<CollectiveKind>& kinds);

  /// Seconds that no schedule of messages can beat: Bound::seconds(). For all_reduce the bandwidth
  /// is that of the best reduce-scatter and all-gather where direct ways are not known to be
  /// faster.
  [[nodiscard]] double seconds(CollectiveKind kind, double size_bytes) const;
  [[nodiscard]] const Bound& bound(CollectiveKind kind) const { return bounds_.at(kind); }

 private:
  std::map<CollectiveKind, Bound> bounds_;
};

/// One line of the table: a collective at a size.
struct SynthRow {
  CollectiveKind kind = CollectiveKind::all_reduce;
  std::uint64_t size_bytes = 0;
  std::string schedule;
  std::size_t steps = 0;
  int chunks = 0;
  double seconds = 0;
  synth::Method method = synth::Method::simulated;
  double limit_s = 0;
  double ring_s = 0;  ///< ring (broadcast, reduce: chain) in the order of ranks; 0: has none
  double tree_s = 0;  ///< double binary tree, or binomial where that has no form; 0: has none
};

/// What limits assume, and what all_reduce could reach in switches that combine and copy.
[[nodiscard]] std::string switches_text(const Bound& bound);

/// "96.4 %"
[[nodiscard]] std::string share_of_limit(double limit_s, double seconds);

class SynthReport {
 public:
  SynthReport(const Topology& topology, const Plan& plan, const std::vector<CollectiveKind>& kinds,
              const std::vector<std::uint64_t>& sizes, const Limits& limits);

  [[nodiscard]] const std::vector<SynthRow>& rows() const { return rows_; }
  /// A table for people.
  [[nodiscard]] std::string text() const;
  [[nodiscard]] std::string json() const;

 private:
  std::string name_;
  int world_size_ = 0;
  std::vector<SynthRow> rows_;
  std::vector<std::string> notes_;  // one per collective: its limit
};

}  // namespace chorus
