// Provably good schedules for small and for symmetric networks: SCCL's problem, by Z3.
//
// A k-synchronous schedule (Cai et al., "Synthesizing optimal collective algorithms", PPoPP 2021)
// has S steps; step s takes rₛ ≥ 1 rounds, R = Σ rₛ of them together; in a round every resource
// carries as many chunks as its speed allows (round_network.hpp). It takes about
// S·alpha + (R/C)·bytes·beta: few steps are for small messages, few rounds per chunk for large
// ones.
//
// C, the chunks, counts as SCCL does, k being the Schedule's chunks per block:
//
//   all_gather, reduce_scatter, gather, scatter   C = k: of one rank's block
//   broadcast, reduce                             C = k: of the buffer
//   all_to_all                                    C = n·k: of one rank's input, k per pair
//   all_reduce                                    C = k: of the buffer; n times those of the
//                                                 reduce_scatter and all_gather that make it
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "chorus/schedule.hpp"
#include "chorus/topology.hpp"
#include "model/price/cost.hpp"
#include "synth/budget.hpp"
#include "synth/exact/round_network.hpp"

namespace chorus::synth::exact {

/// A question: is there a schedule of so many chunks, steps and rounds?
struct Instance {
  int chunks = 0;  ///< C, counted as above
  int steps = 0;   ///< S
  int rounds = 0;  ///< R

  bool operator==(const Instance&) const = default;
};

enum class Answer : std::uint8_t { found, impossible, gave_up };

/// How something is known: not, by counting hops or bytes, or because the solver, with no symmetry
/// assumed, refuted the contrary.
enum class Proof : std::uint8_t { none, bound, unsatisfiable };

struct Result {
  Answer answer = Answer::gave_up;
  Schedule schedule = {};        ///< if found; passes first_fault()
  std::vector<int> rounds = {};  ///< if found: of each step of the schedule
  Proof proof = Proof::none;     ///< if impossible
  std::size_t symmetry = 1;      ///< if found: size of the group that the schedule shares
};

struct Settings {
  /// Rounds that a chunk takes on the slowest resource: more let faster resources be used finer.
  int rounds_of_slowest = 1;
  EdgeFilter use = {};   ///< edges that schedules may use; all if empty
  bool symmetry = true;  ///< look for symmetric schedules first
};

/// A point of the frontier between latency and bandwidth.
struct Point {
  Instance instance;
  Schedule schedule;
  std::vector<int> rounds;  ///< of each step
  /// That fewer steps do not do with these chunks and rounds.
  Proof steps_optimal = Proof::none;
  /// That with these steps and at most Frontier::most_chunks no fewer rounds per chunk do.
  Proof rounds_optimal = Proof::none;
  double bandwidth_share = 0;  ///< least possible rounds per chunk / those of this point
  Cost cost;                   ///< predicted, on the topology
};

struct Frontier {
  std::vector<Point> points;  ///< fewest steps first; rounds per chunk fall
  int least_steps = 0;
  double least_rounds_per_chunk = 0;  ///< by the bandwidth bound; R/C of no schedule is below
  int most_chunks = 0;                ///< considered, counted as C
  /// True if every point is proved optimal both ways and the last one reaches the bandwidth bound.
  bool complete = false;
};

struct Walk {
  int most_chunks = 0;  ///< C; 0: the denominator of the bandwidth bound, if that is small
  int most_steps = 0;   ///< 0: until the bandwidth bound is reached
  /// Z3's units of work (about 10⁷ per CPU second) for one question, after which it counts as not
  /// answered. The same on every machine.
  unsigned work = 200'000'000;
  /// Questions to the solver after which the walk ends; 0: any number.
  int most_questions = 0;
};

/// For one topology and collective; what is found about them serves all questions.
class Synthesizer {
 public:
  /// Throws TopologyError if the network is not connected, InputError for a barrier or a root that
  /// is no rank. `topology` is copied.
  Synthesizer(const Topology& topology, Collective collective, Settings settings = {});
  Synthesizer(Synthesizer&&) noexcept;
  Synthesizer& operator=(Synthesizer&&) noexcept;
  ~Synthesizer();

  [[nodiscard]] int least_steps() const;
  [[nodiscard]] double least_rounds_per_chunk() const;
  /// Automorphisms of the network, see automorphisms.hpp.
  [[nodiscard]] double automorphisms() const;

  /// Asks the bounds, then the solver: with the largest group of symmetries that fits, with smaller
  /// ones, with none. Gives up when `budget` is spent or after `work` units (0: no limit). Throws
  /// InputError for counts that are not positive or not divisible as needed, SynthesisError if Z3
  /// fails. Deterministic unless time runs out.
  ///
  /// all_reduce: composed if the reduce_scatter and all_gather that together have S steps and R
  /// rounds exist (C must be divisible by n then), else by the direct encoding, in which every
  /// chunk is reduced along a tree and copied along another, overlapping with other chunks.
  [[nodiscard]] Result solve(const Instance& instance, const Budget& budget, unsigned work = 0);

  /// Fewest steps first, the fewest rounds per chunk for each number of steps, until the bandwidth
  /// bound is reached or `budget` is spent: then what was found.
  [[nodiscard]] Frontier pareto(const Budget& budget, const Walk& walk = {});

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace chorus::synth::exact
