// Decides which flows to measure next.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "topology/probing/host_tree.hpp"

namespace chorus::probing {

/// Asks for experiments until the wiring between hosts is understood.
///
/// 1. Tournament: rounds in which every host exchanges with one other, both ways; all rounds for up
///    to 16 hosts, 2·log₂ n of them beyond. Hosts that reach their best rate together are near.
/// 2. Pairs alone: whether the tournament was too crowded; then one host of each near group:
///    which groups are far from which, and how far.
/// 3. Cuts: as many hosts as can of one group exchange with as many outside, twice. What they get
///    together is the trunk's, however fast a pair alone was.
/// 4. Rounds whose one direction was much slower than the other, one way after the other: two ways
///    at once say nothing of the slower. Where a round is still slower than its cables and trunks
///    explain: random rounds. Then the groups that explain most, asked for in the same way, until
///    they are those of the time before.
/// 5. Fans: one host exchanges with several, where its cable may be faster than any single peer's;
///    of up to 16 hosts each with all others, again until two experiments agree.
///
/// O(n log n) flows in all. Pure: the same answers give the same questions.
class Prober {
 public:
  explicit Prober(int hosts);

  /// The flows to run next, all at the same time; nothing once all is known. Call take() for each.
  [[nodiscard]] std::optional<std::vector<Flow>> next();
  /// What is asked next, in order, whatever the answers; filled by next().
  [[nodiscard]] std::span<const std::vector<Flow>> pending() const { return queue_; }
  /// The rates of the flows that next() gave.
  void take(std::span<const double> bytes_per_s);

  [[nodiscard]] int done() const { return static_cast<int>(experiments_.size()); }
  /// Experiments foreseen so far; grows when something is found.
  [[nodiscard]] int total() const { return done() + static_cast<int>(queue_.size()); }
  /// What it is doing, for people: "rounds of all hosts".
  [[nodiscard]] const std::string& phase() const { return phase_; }
  /// As measured.
  [[nodiscard]] std::span<const Experiment> experiments() const { return measured_; }

  /// What is known so far.
  [[nodiscard]] HostTree tree() const;

 private:
  enum class Step {
    tournament,
    crowd,
    pairs,
    cuts,
    slow,
    one_way,
    hidden,
    slow_again,
    fans,
    finished
  };

  void begin_tournament();
  void ask_pairs();
  void ask_pair(int a, int b);
  void ask_alone();
  [[nodiscard]] bool tournament_was_crowded() const;
  void ask_all_alone();
  void ask_cuts(const std::vector<std::vector<int>>& groups, int runs);
  [[nodiscard]] int times_asked(const std::vector<Flow>& flows) const;
  void ask_where_slow_hosts_are();
  void ask_random_rounds(int rounds);
  void ask_slow_ways();
  [[nodiscard]] bool always_waited(const std::vector<Flow>& round, const Flow& flow) const;
  [[nodiscard]] bool unexplained() const;
  void ask_hidden();
  void ask_fans_of_single_hosts(const std::vector<std::vector<int>>& parts);
  void ask_whole_fans();
  [[nodiscard]] bool is_confirmed(int host, bool sends) const;
  void ask_fans();
  [[nodiscard]] std::vector<Flow> cut_flows(const std::vector<int>& group, const HostTree& cables,
                                            const HostTree& known) const;

  int hosts_;
  Step step_ = Step::tournament;
  std::string phase_;
  std::vector<std::vector<Flow>> queue_;  // asked from the front
  std::vector<Experiment> measured_;
  std::vector<Experiment> experiments_;   // as far as they can be believed
  std::vector<std::vector<int>> groups_;  // candidates
  std::vector<std::vector<int>> pair_parts_;
  std::size_t pivot_ = 0;
  std::vector<std::vector<int>> last_found_;  // by ask_hidden()
  int hidden_runs_ = 0;
  int fan_ = -1;
};

/// Rounds in which everybody meets somebody: perfect matchings of [0, hosts) (with one host idle
/// where the number is odd), every pair once in hosts − 1 rounds (hosts, if odd). Circle method.
[[nodiscard]] std::vector<std::vector<Flow>> tournament(int hosts);

}  // namespace chorus::probing
