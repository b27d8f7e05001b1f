// Where the axes of a layout go on the wiring, what a step costs there, and which layout is best.
#pragma once

#include <string>
#include <vector>

#include "chorus/grid.hpp"
#include "config.hpp"

namespace trainer {

/// A layout's dimensions from the slowest to the fastest index: stages, replicas of experts,
/// experts of a replica, slices.
[[nodiscard]] std::vector<int> grid_of(const Layout& layout);

/// What a step of `config` moves along them, of the rank that moves most: replicas, replicas of
/// experts, experts, slices, stages, and replicas inside and across nodes, each by the formulas of
/// volume.hpp; of rows to experts what a gate without preferences sends.
[[nodiscard]] std::vector<chorus::GridFlow> flows_of(const Config& config);

/// Layout::ranks: the library's mapping of the grid onto `topology`.
[[nodiscard]] std::vector<int> mapped(const Config& config, const chorus::Topology& topology);

/// Floating-point operations of one token, forward: of a layer, attention counted as if half of the
/// tokens saw each other; of the output.
struct Operations {
  double layer = 0, head = 0;
};
[[nodiscard]] Operations operations_of(const Model& model);

/// How fast a rank works while all do: operations per second of the passes of a layer, and of the
/// output with its loss, both ways.
struct Pace {
  double forward = 0, backward = 0, head = 0;
  double step_s = 0;  ///< per parameter of a rank: its update, and what else touches it once a step
  double byte_s = 0;  ///< to read or write a byte that is in no cache
};
[[nodiscard]] Pace pace_of(double flops_per_s);

/// What the ranks of a run are.
struct Machine {
  chorus::Topology topology;
  double flops_per_s = 1e11;  ///< of one rank's matrix products, while all compute
  Pace pace = {};             ///< as measured (compare.hpp); zeros: pace_of(flops_per_s)
  /// Of a message by flow of flows_of(), as measured; empty: by the topology.
  std::vector<chorus::GridMapping::Price> prices = {};
  double memory_bytes = 0;  ///< of one rank; 0: no limit
  /// Of each rank, as a factor on flops_per_s and pace; empty: all are alike.
  std::vector<double> speeds = {};
  /// Messages move while ranks compute: network adapters and copy engines do, cores that are ranks
  /// do not.
  bool overlaps = true;
};

/// Throws chorus::InputError with the numbers unless `speeds` is empty or positive for each rank.
void check_speeds(const Machine& machine);

/// Seconds of one step and what they are made of; of the slowest rank.
struct Estimate {
  Config config;
  double seconds = 0;
  double compute_s = 0;      ///< of which recomputation and updates
  double idle_s = 0;         ///< bubbles of the pipeline and its messages
  double tensor_s = 0;       ///< standing still for slices
  double expert_s = 0;       ///< for rows to and from experts
  double data_s = 0;         ///< for gradients and sharded values
  double memory_bytes = 0;   ///< of the arena of the fullest rank; 0: not counted yet
  std::vector<int> nesting;  ///< GridMapping::nesting
};

/// What a step of `config` takes on `machine`: operations over the rank's speed, messages at the
/// price of map_grid(), pipelines by their simulation. `count_memory` lays the ranks out without
/// memory.
[[nodiscard]] Estimate estimate(const Config& config, const Machine& machine, bool count_memory);

/// The same with a given mapping, unchecked and without memory.
[[nodiscard]] Estimate estimate(const Config& config, const Machine& machine,
                                const chorus::GridMapping& mapping);

/// Bytes of the arena of the fullest rank.
[[nodiscard]] double memory_of(const Config& config);

/// `config` with the layers, and where it has Layout::shares the batch, divided for the speeds of
/// the machine: in turn the best layers for the shares and the best shares for the layers, so that
/// the slowest stage of the slowest replica is fast (the problem of AccPar, Song et al., 2020).
[[nodiscard]] Config balanced(Config config, const Machine& machine,
                              const chorus::GridMapping& mapping);

/// The best feasible layouts for one step of `sequences` of `model` on `machine`, fastest first.
struct Plan {
  std::vector<Estimate> best;
  int considered = 0;
  int too_large = 0;       ///< of those examined, what does not fit the memory
  double least_bytes = 0;  ///< that the smallest of these needs
};
/// Tries every dp · tp · pp that is the ranks of the topology with every ep, ZeRO stage, number of
/// micro-batches, schedule, recomputation, sequence parallelism, halves, parts of rows to experts
/// and secondary partition that `base.model` allows; where ranks are of unequal speed also unequal
/// batches and layers. Returns at most `most`. Compression, averages and quantization are as `base`
/// says: they change the arithmetic. Throws
/// chorus::InputError with the numbers if none is possible.
[[nodiscard]] Plan best_layouts(const Config& base, int sequences, const Machine& machine,
                                std::size_t most);

/// The command line that runs it and a line per layout with its reasons, for people.
[[nodiscard]] std::string describe(const Plan& plan, const Machine& machine);

}  // namespace trainer
