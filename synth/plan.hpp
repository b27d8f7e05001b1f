// From a topology to a Plan: asks every strategy, proves and times what they make, keeps the best.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "chorus/plan.hpp"
#include "chorus/topology.hpp"
#include "model/price/cost.hpp"
#include "synth/budget.hpp"
#include "synth/network.hpp"
#include "synth/repeated_network.hpp"

namespace chorus::synth {

/// The same wiring with every link turned round: what spreads over it, read backwards, combines
/// over the original.
[[nodiscard]] Topology reversed(const Topology& topology);
/// True if every link has a twin in the other direction and port groups do too, so that what holds
/// for one direction holds for the other.
[[nodiscard]] bool symmetric(const Topology& topology);

/// What a strategy is asked for.
struct Task {
  const Topology& topology;
  /// Of `topology`. Folded where there are too many ranks to list their edges, but the wiring
  /// repeats itself: strategies that fold are asked alone, and return symmetric schedules.
  const Network& network;
  Collective collective;
  double size_bytes = 0;  ///< counted as PlanEntry does
};

/// One way to make schedules. A strategy that serves only collectives which copy (all_gather,
/// broadcast, all_to_all, gather, scatter) is asked for those, on the topology turned round where
/// the mirror image is wanted.
struct Strategy {
  std::string name;
  /// Schedules worth timing for the task, any number. Returns what it has when the budget is spent.
  std::function<std::vector<Schedule>(const Task&, const Budget&)> make;
  bool combines = false;  ///< also asked for reduce_scatter, reduce and all_reduce themselves
  bool every_size =
      true;            ///< false: asked once per collective, its schedules do not depend on size
  bool folds = false;  ///< serves folded networks
  /// Where ranks are many it is asked before others: what loses by its busiest link alone is not
  /// timed then.
  bool leads = false;
  /// The steps of its all_reduces follow the clock already where they are large (timed.hpp).
  bool timed = false;
};

/// Those that need no solver: in every program that links the library.
[[nodiscard]] std::vector<Strategy> built_in_strategies();

struct PlanOptions {
  std::vector<CollectiveKind> kinds = {CollectiveKind::all_reduce,     CollectiveKind::all_gather,
                                       CollectiveKind::reduce_scatter, CollectiveKind::all_to_all,
                                       CollectiveKind::broadcast,      CollectiveKind::reduce};
  /// Sizes at which schedules are made and compared, ascending.
  std::vector<std::uint64_t> sizes = {1 << 10, 32 << 10, 1 << 20, 32 << 20, 1 << 30};
  /// What every step of a schedule takes beside what is predicted of the wiring, seconds: where
  /// ranks compute and look for messages now and then.
  double step_s = 0;
  /// How much work the plan is worth: times what plans for as many ranks take at most if nothing is
  /// said. The processor's seconds that this means are in docs/synthesis.md.
  double effort = 1;
  /// Where the budget is spent before a collective has a schedule: false: the first one that is
  /// made all the same serves it, at no size is it left open; true: the plan goes without that
  /// collective.
  bool may_leave_out = false;
  /// Seconds that no schedule can beat, if known: who comes within 0.5 % ends the search.
  std::function<double(Collective, double size_bytes)> limit;
  /// Schedules for which it says no are passed over, if given.
  std::function<bool(const Schedule&)> accepts;
  /// Called before each question to a strategy: how many of how many are behind.
  std::function<void(int done, int total)> progress;
  /// Called when a schedule becomes the best known: predicted seconds.
  std::function<void(Collective, std::uint64_t size_bytes, const Schedule&, double seconds)> better;
};

/// How a time was predicted: by simulate(); where that would take too long, or the network is
/// folded, by replayed_seconds(); where that cannot, by cost().
enum class Method : std::uint8_t { simulated, replayed, cost };

struct Prediction {
  double seconds = 0;
  Method method = Method::simulated;
};

/// A wiring ready for predictions: all edges and routes, or, beyond kMostListed ranks, folded if it
/// repeats itself.
class PreparedTopology {
 public:
  explicit PreparedTopology(const Topology& topology);

  [[nodiscard]] const Topology& topology() const { return topology_; }
  /// True if schedules of `kind` are made for one cell and stand for all. Those of a collective
  /// with a root have no symmetry.
  [[nodiscard]] bool folds(CollectiveKind kind) const;
  /// Folded for those that are.
  [[nodiscard]] const Network& network(CollectiveKind kind) const;
  /// Infinite seconds as soon as a simulation is certain to take longer than `give_up_s`. Throws
  /// InputError for a schedule without symmetry whose kind is folded.
  [[nodiscard]] Prediction predict(
      const Schedule& schedule, double size_bytes,
      double give_up_s = std::numeric_limits<double>::infinity()) const;
  /// The same in seconds, roughly where many transfers are under way at once: in less than half of
  /// the time.
  [[nodiscard]] double estimate(const Schedule& schedule, double size_bytes) const;
  /// Seconds that the most loaded link or port group is busy with what all transfers bring it: no
  /// simulation is faster. 0 if the kind is folded.
  [[nodiscard]] double least_seconds(const Schedule& schedule, double size_bytes) const;
  /// The same where every rank sends every other its block of an all_to_all straight, not folded.
  [[nodiscard]] double straight_seconds(double size_bytes) const;
  /// Transfer by transfer. Nothing where that takes too long, or the kind is folded.
  [[nodiscard]] std::optional<Simulation> simulation(const Schedule& schedule,
                                                     double size_bytes) const;

 private:
  [[nodiscard]] const Routes& routes() const;

  Topology topology_;
  std::optional<RepeatedNetwork> repeated_;
  mutable std::optional<Network> whole_;  // these two when they are asked for
  mutable std::optional<Routes> routes_;
};
/// Ranks whose n² edges are still listed one by one where they could be folded.
inline constexpr int kMostListed = 64;

/// The best schedule for one collective and size, and what it was compared with.
struct Choice {
  CollectiveKind kind = CollectiveKind::all_reduce;
  std::uint64_t size_bytes = 0;
  Schedule schedule;
  double seconds = 0;
  Method method = Method::simulated;
  int considered = 0;    ///< schedules compared
  std::string strategy;  ///< that made it
  /// The best time of a schedule that another strategy made; 0 if there is none.
  double next_best_s = 0;
};

struct Planned {
  Plan plan;
  std::vector<Choice> choices;  ///< by kind as asked, then size
  bool complete = true;         ///< false: the budget was spent before everything was tried
  bool interrupted = false;     ///< by the clock or a stop: another run may find other schedules
};

/// Every schedule in the result has passed first_fault(). Deterministic unless interrupted. Throws
/// TopologyError naming the cut if the topology is not connected, SynthesisError if no strategy
/// serves a collective (which one, and why).
[[nodiscard]] Planned make_plan(const Topology& topology, const PlanOptions& options,
                                const std::vector<Strategy>& strategies, const Budget& budget);

}  // namespace chorus::synth
