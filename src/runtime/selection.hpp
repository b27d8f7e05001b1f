// Selection: which schedule runs for which collective and size, and why not the others.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chorus/options.hpp"
#include "chorus/plan.hpp"
#include "chorus/topology.hpp"
#include "model/cost.hpp"
#include "runtime/execution.hpp"

namespace chorus {

inline constexpr int kNumCollectiveKinds = 9;

/// A schedule that was considered.
struct Candidate {
  std::string name;
  Cost cost = {};
  int steps = 0;
  std::string why_not = {};  ///< empty if it could run
};

/// All candidates for one collective, and the plan made of the best by size.
struct Considered {
  std::vector<Candidate> candidates;  ///< in the order of algorithms()
  std::vector<PlanEntry> entries;     ///< the lower envelope of their costs
};

/// Prices every algorithm for `kind` on `topology`. `levels` as AlgorithmInput. `shared_cores` > 0:
/// all ranks share memory, and that many cores. Then schedules with a direct form
/// (model/direct.hpp) are priced by what that moves, and up to kMostFlat ranks only those are
/// considered.
[[nodiscard]] Considered consider(CollectiveKind kind, const Topology& topology,
                                  const Routes& routes, const std::vector<int>& levels,
                                  const Options& options, int shared_cores = 0);

/// For people: what runs for `size_bytes`, at what cost, and why not the others.
[[nodiscard]] std::string explain(const Considered& considered, CollectiveKind kind,
                                  double size_bytes);

/// Keeps, per communicator, the routines of the schedules in use: made, proved and lowered at their
/// first call.
class Selector {
 public:
  Selector(Topology topology, std::vector<int> levels, const Options& options, Plan plan, Rank rank,
           int guaranteed_slots, int shared_cores = 0);

  struct Choice {
    std::shared_ptr<const Routine> routine;
    std::string name;
  };
  /// Throws SynthesisError if a schedule (of a plan file, say) turns out wrong.
  [[nodiscard]] const Choice& choose(Collective collective, std::uint64_t size_bytes);
  [[nodiscard]] std::string explain(CollectiveKind kind, std::uint64_t size_bytes);
  /// Of what choose() chooses.
  [[nodiscard]] double predicted_s(CollectiveKind kind, std::uint64_t size_bytes);
  [[nodiscard]] const Topology& topology() const { return topology_; }
  [[nodiscard]] const Plan& plan() const { return plan_; }
  /// Everything that choose() chooses from. Throws SynthesisError if nothing serves `kind`.
  [[nodiscard]] const Considered& considered(CollectiveKind kind) {
    return *prepare(kind).considered;
  }

 private:
  struct PerKind {
    std::optional<Considered> considered;
    // [root][entry], made when first used; empty routine until then.
    std::vector<std::vector<Choice>> choices;
  };
  PerKind& prepare(CollectiveKind kind);
  [[nodiscard]] static std::size_t entry_for(const PerKind& per_kind, std::uint64_t size_bytes);
  [[nodiscard]] Choice make_choice(const Schedule& schedule, Rank root) const;

  Topology topology_;
  Routes routes_;
  std::vector<int> levels_;
  const Options& options_;
  Plan plan_;
  Rank rank_;
  int guaranteed_slots_;
  int shared_cores_;  ///< of ranks that all share memory; else 0
  std::array<PerKind, kNumCollectiveKinds> kinds_;
};

}  // namespace chorus
