// Selection: which schedule runs for which collective and size, and why not the others.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "chorus/options.hpp"
#include "chorus/plan.hpp"
#include "chorus/topology.hpp"
#include "model/price/cost.hpp"
#include "model/price/price.hpp"
#include "runtime/executors/direct_cost.hpp"
#include "runtime/executors/execution.hpp"

namespace chorus {

class NetworkDivision;

inline constexpr int kNumCollectiveKinds = 9;

/// A schedule that was considered.
struct Candidate {
  std::string name;
  Price price = {};
  int steps = 0;
  std::string why_not = {};  ///< empty if it could run
};

/// All candidates for one collective, and the plan made of the best by size.
struct Considered {
  std::vector<Candidate> candidates;  ///< in the order of algorithms()
  std::vector<PlanEntry> entries;     ///< the lower envelope of their costs
};

/// What prices count besides the Topology.
struct Pricing {
  /// The machine whose memory all ranks share, if they do, which outlives this. Then schedules are
  /// priced by what each rank copies, those with a direct form (model/program/direct.hpp) by what
  /// that does.
  const SharedMachine* shared = nullptr;
  /// May add to the price of a candidate that could run, or say why not.
  std::function<void(const Schedule&, Candidate&)> amend = {};
  bool tells = false;  ///< the log, at info, what serves which sizes
};

/// Prices every algorithm for `kind` on `topology`. `levels` as AlgorithmInput.
[[nodiscard]] Considered consider(CollectiveKind kind, const Topology& topology,
                                  const Routes& routes, const std::vector<int>& levels,
                                  const Options& options, const Pricing& pricing = {});

/// Of one of its entries: by the schedule's price, or by the entry's line where that is not known.
[[nodiscard]] double predicted_s(const Considered& considered, const PlanEntry& entry,
                                 double size_bytes);

/// For people: what runs for `size_bytes`, at what cost, and why not the others.
[[nodiscard]] std::string explain(const Considered& considered, CollectiveKind kind,
                                  double size_bytes);

/// Which schedule serves which collective and size: the plan's, or the cheapest on the Topology.
/// The same on all ranks.
class Selection {
 public:
  Selection(Topology topology, std::vector<int> levels, const Options& options, Plan plan,
            Pricing pricing = {});

  /// For groups of kCompactRanks and more, where pricing looks at routes between all ranks: rank 0
  /// decides for all which classic schedule serves which size, and the others follow. Before
  /// anything is chosen. follow() throws BootstrapError if what it is given makes no sense.
  [[nodiscard]] std::vector<std::byte> decide();
  void follow(std::span<const std::byte> decisions);

  /// Everything that serves, a plan's entries first. Throws SynthesisError if nothing does.
  [[nodiscard]] const Considered& considered(CollectiveKind kind) {
    return *prepare(kind).considered;
  }
  /// The first of its entries that serves this size, counted as PlanEntry does.
  [[nodiscard]] std::size_t entry_for(CollectiveKind kind, std::uint64_t size_bytes);
  /// The schedule of this name: the plan's, or that algorithm's. Throws InputError, as why_not()
  /// says.
  [[nodiscard]] Schedule named(CollectiveKind kind, std::string_view name) const;
  /// Why no schedule of this name serves `kind`; nothing if one does.
  [[nodiscard]] std::optional<std::string> why_not(CollectiveKind kind,
                                                   std::string_view name) const;
  [[nodiscard]] std::string explain(CollectiveKind kind, std::uint64_t size_bytes);
  /// Why what serves this size does: by which plan or option, or how much dearer the next is.
  [[nodiscard]] std::string why(CollectiveKind kind, std::uint64_t size_bytes);
  /// Of what serves this size.
  [[nodiscard]] double predicted_s(CollectiveKind kind, std::uint64_t size_bytes);
  /// Of that, the part that it would take if it were empty: latencies; in [0, 1].
  [[nodiscard]] double latency_share(CollectiveKind kind, std::uint64_t size_bytes);
  [[nodiscard]] const Topology& topology() const { return topology_; }
  [[nodiscard]] const Plan& plan() const { return plan_; }
  [[nodiscard]] const Pricing& pricing() const { return pricing_; }

 private:
  struct PerKind {
    std::optional<Considered> considered;
    std::size_t of_plan = 0;  ///< entries that are the plan's: the first
  };
  /// A classic schedule by name, with its range and price; the schedule itself is made when needed.
  struct Decision {
    std::string algorithm;
    PlanEntry entry;
  };
  PerKind& prepare(CollectiveKind kind);
  [[nodiscard]] double predicted_s(CollectiveKind kind, std::size_t entry, double bytes);
  [[nodiscard]] Considered decided(CollectiveKind kind);
  void tell(CollectiveKind kind, const PerKind& per_kind) const;
  [[nodiscard]] const PlanEntry* planned(CollectiveKind kind, std::string_view name) const;

  Topology topology_;
  std::optional<Routes> routes_;  ///< once something is priced
  std::array<std::vector<Decision>, kNumCollectiveKinds> decisions_;
  std::vector<int> levels_;
  const Options& options_;
  Plan plan_;
  Pricing pricing_;
  std::array<PerKind, kNumCollectiveKinds> kinds_;
};

/// Keeps, per communicator, the routines of the schedules in use on host memory: made, proved and
/// lowered at their first call.
class Selector : public Selection {
 public:
  /// `shared` as Pricing. `division`: of what schedules send, where hosts have several networks
  /// between them; or null.
  Selector(Topology topology, std::vector<int> levels, const Options& options, Plan plan, Rank rank,
           int guaranteed_slots, const SharedMachine* shared = nullptr,
           std::shared_ptr<const NetworkDivision> division = nullptr);

  [[nodiscard]] const std::shared_ptr<const NetworkDivision>& division() const { return division_; }

  struct Choice {
    std::shared_ptr<const Routine> routine;
    std::string name;
  };
  /// Throws SynthesisError if a schedule (of a plan file, say) turns out wrong.
  [[nodiscard]] const Choice& choose(Collective collective, std::uint64_t size_bytes);
  /// named(). Throws InputError as that does.
  [[nodiscard]] const Choice& choose(Collective collective, std::string_view name);

 private:
  [[nodiscard]] Choice make_choice(const Schedule& schedule, Rank root) const;
  [[nodiscard]] Choice make_choice_alone(const Schedule& schedule) const;

  Rank rank_;
  int guaranteed_slots_;
  std::shared_ptr<const NetworkDivision> division_;
  /// [kind][root][entry], made when first used; empty routine until then.
  std::array<std::vector<std::vector<Choice>>, kNumCollectiveKinds> choices_;
  std::map<std::tuple<CollectiveKind, Rank, std::string>, Choice> named_;
};

}  // namespace chorus
