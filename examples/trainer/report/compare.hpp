// What a run measures of itself: steps with and without overlap, and steps against their estimate.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "report/plan.hpp"
#include "trainer.hpp"

namespace trainer {

/// Medians of rank 0 over pairs of steps, one with overlap and one without, in turn: what else the
/// machine does meets both.
struct OverlapFigures {
  int pairs = 0;
  double with_s = 0, with_exposed_s = 0;
  double without_s = 0, without_exposed_s = 0;
  /// The slowest rank's step by itself, without any communication, all at once and in turn with the
  /// others; 0 where a step is not what one rank could do (slices, stages, experts spread out).
  double alone_s = 0;

  /// Of what is exposed without overlap.
  [[nodiscard]] double hidden_share() const {
    return without_exposed_s > 0 ? 1 - with_exposed_s / without_exposed_s : 0;
  }
};
/// Collective.
[[nodiscard]] OverlapFigures compare_overlap(chorus::Communicator& world, Trainer<float>& trainer,
                                             int pairs);

/// A layer's passes, the ends of the model and the rest of a step, from steps of models of one and
/// of three layers on one rank, while all ranks do the same. Everything is collective.
class Calibration {
 public:
  Calibration(chorus::Communicator& world, const Config& config);
  ~Calibration();
  /// A step of each.
  void round();
  /// Of all rounds, one at least: medians, of the slowest rank.
  [[nodiscard]] Pace pace();

 private:
  struct Samples;
  chorus::Communicator& world_;
  Config config_;
  std::unique_ptr<Samples> samples_;
};

/// Of messages on the groups of `trainer`, all groups of an axis at once, by flow of flows_of():
/// from a short and a long all_reduce, all_to_all or message. Collective; of the slowest rank.
[[nodiscard]] std::vector<chorus::GridMapping::Price> measured_prices(chorus::Communicator& world,
                                                                      Trainer<float>& trainer);

/// The planner's step beside the measured one.
struct PlanFigures {
  Machine machine;       ///< with pace and prices as measured
  Estimate by_topology;  ///< operations as measured, messages at what the topology says
  Estimate estimate;     ///< both as measured
  int steps = 0;
  double measured_s = 0;  ///< median of rank 0
  double exposed_s = 0;   ///< of which it stood still, pipeline included
};
/// Collective. `machine` tells what to take for the topology.
[[nodiscard]] PlanFigures compare_plan(chorus::Communicator& world, Trainer<float>& trainer,
                                       Machine machine, int steps);

/// What compressing the gradients of a model between replicas costs a rank and saves it.
struct BreakEven {
  std::string name;
  double dense_bytes = 0;  ///< that an all_reduce sends
  double sent_bytes = 0;   ///< in its place
  double work_s = 0;       ///< to compress, with error feedback, and to add what all replicas sent

  /// The rate below which it pays; not positive: at none, since it sends no less.
  [[nodiscard]] double bytes_per_s() const { return (dense_bytes - sent_bytes) / work_s; }
};
/// Of every compressor that works on `count` values at once, measured on this rank's core.
[[nodiscard]] std::vector<BreakEven> break_even(const Training& training, std::size_t count,
                                                int replicas);
[[nodiscard]] std::string describe(const std::vector<BreakEven>& all);

[[nodiscard]] std::string describe(const OverlapFigures& figures);
[[nodiscard]] std::string describe(const PlanFigures& figures);

/// {"version", "layout", "overlap", "plan"}: what was not measured is null. Seconds.
[[nodiscard]] std::string figures_json(const Config& config, const OverlapFigures* overlap,
                                       const PlanFigures* plan);

}  // namespace trainer
