#include "synth/exact/exact.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <utility>

#include "base/check.hpp"
#include "base/counted.hpp"
#include "chorus/error.hpp"
#include "model/bounds/bounds.hpp"
#include "model/schedule/contract.hpp"
#include "synth/exact/frontier.hpp"
#include "synth/exact/spread_solver.hpp"
#include "synth/multicast_routing.hpp"

namespace chorus::synth::exact {
namespace {

/// The collective that is solved for `kind`: what combines is solved backwards, as what copies.
CollectiveKind copying(CollectiveKind kind) {
  if (kind == CollectiveKind::reduce_scatter) return CollectiveKind::all_gather;
  if (kind == CollectiveKind::reduce) return CollectiveKind::broadcast;
  return kind;
}

/// Chunks per block of `chunks` as SCCL counts them.
int chunks_per_block(CollectiveKind kind, int world_size, int chunks) {
  if (kind != CollectiveKind::all_to_all) return chunks;
  if (chunks % world_size != 0) {
    throw InputError(fmt::format(
        "an all_to_all of {0} ranks cannot have {1} chunks; give a multiple of {0}: that many "
        "chunks of each rank's input",
        world_size, chunks));
  }
  return chunks / world_size;
}

double rounds_per_chunk(const Topology& topology, Collective collective, double beta_s_per_byte) {
  if (beta_s_per_byte <= 0) return 0;
  const double seconds_per_byte = lower_bound(topology, collective).seconds_per_byte;
  Schedule shape;
  shape.collective = collective;
  shape.world_size = topology.world_size();
  shape.num_chunks = num_blocks(collective.kind, shape.world_size);
  const double per_block_chunk = seconds_per_byte / (beta_s_per_byte * chunk_bytes(shape, 1.0));
  return collective.kind == CollectiveKind::all_to_all ? per_block_chunk / shape.world_size
                                                       : per_block_chunk;
}

void require_sensible(const Topology& topology, Collective collective) {
  if (collective.kind == CollectiveKind::barrier) {
    throw InputError("a barrier moves no data: there is nothing to synthesize");
  }
  if (is_rooted(collective.kind) &&
      (collective.root < 0 || collective.root >= topology.world_size())) {
    throw InputError(
        fmt::format("root {} is not one of the {} ranks", collective.root, topology.world_size()));
  }
}

bool same(const RoundNetwork& a, const RoundNetwork& b) {
  if (a.ways != b.ways || a.limits.size() != b.limits.size()) return false;
  const auto loads = [](const RoundNetwork& network) {
    std::vector<std::pair<std::vector<std::pair<int, int>>, double>> result;
    for (const Limit& limit : network.limits) {
      result.emplace_back(limit.crossed, limit.per_round);
    }
    std::sort(result.begin(), result.end());
    return result;
  };
  return loads(a) == loads(b);
}

}  // namespace

class Synthesizer::Impl {
 public:
  Impl(const Topology& topology, Collective collective, Settings settings)
      : topology_(topology),
        routes_(topology),
        collective_(collective),
        settings_(std::move(settings)) {
    require_sensible(topology, collective);
    const Network forward(topology);
    require_connected(topology, forward);
    const bool combines = is_combining(collective.kind);
    if (collective.kind == CollectiveKind::all_reduce) {
      // Its halves; of equal ones, one.
      spread_ = solver_of(forward, CollectiveKind::all_gather, CollectiveKind::all_gather);
      SpreadSolver backwards =
          solver_of(Network(topology, Direction::reversed), CollectiveKind::all_gather,
                    CollectiveKind::reduce_scatter);
      trees_ = solver_of(forward, CollectiveKind::all_reduce, CollectiveKind::all_reduce);
      if (!same(spread_->network(), backwards.network())) combine_ = std::move(backwards);
    } else {
      spread_ = solver_of(combines ? Network(topology, Direction::reversed) : forward,
                          copying(collective.kind), collective.kind);
    }
    rounds_per_chunk_ = rounds_per_chunk(topology, collective, spread_->network().beta_s_per_byte);
  }

  [[nodiscard]] int least_steps() const { return spread_->least_steps(); }
  [[nodiscard]] double least_rounds_per_chunk() const { return rounds_per_chunk_; }
  [[nodiscard]] double automorphisms() { return spread_->symmetries().order; }

  [[nodiscard]] Result solve(const Instance& instance, const Budget& budget, unsigned work) {
    if (instance.chunks < 1 || instance.steps < 1 || instance.rounds < 1) {
      throw InputError(
          fmt::format("({}, {}, {}) is not an instance: chunks, steps and rounds are positive",
                      instance.chunks, instance.steps, instance.rounds));
    }
    Result result = collective_.kind == CollectiveKind::all_reduce
                        ? all_reduce(instance, budget, work)
                        : single(*spread_, instance, budget, work);
    if (result.answer == Answer::found) {
      const std::optional<std::string> fault = first_fault(result.schedule);
      CHORUS_CHECK(!fault, fault.value_or("").c_str());
    }
    return result;
  }

  [[nodiscard]] Frontier pareto(const Budget& budget, const Walk& walk) {
    Frontier frontier;
    if (collective_.kind == CollectiveKind::all_reduce) {
      frontier = all_reduce_frontier(budget, walk);
    } else {
      const int unit = collective_.kind == CollectiveKind::all_to_all ? topology_.world_size() : 1;
      frontier = walk_frontier(
          {least_steps(), rounds_per_chunk_, unit}, walk, budget, name_of(collective_.kind),
          [&](const Instance& instance) { return solve(instance, budget, walk.work); });
    }
    for (Point& point : frontier.points) point.cost = cost(point.schedule, topology_, routes_);
    return frontier;
  }

 private:
  [[nodiscard]] SpreadSolver solver_of(const Network& network, CollectiveKind solved,
                                       CollectiveKind bounded) const {
    RoundNetwork rounds = in_rounds(network, settings_.rounds_of_slowest, settings_.use);
    const Collective of_bound{bounded, collective_.root};
    double least = rounds_per_chunk(topology_, of_bound, rounds.beta_s_per_byte);
    if (bounded == CollectiveKind::all_to_all) least *= rounds.world_size;
    return {std::move(rounds), {solved, collective_.root}, least, settings_.symmetry};
  }

  [[nodiscard]] Result single(SpreadSolver& solver, const Instance& instance, const Budget& budget,
                              unsigned work) {
    budget.say(fmt::format("{}: {}, {}, {}", name_of(collective_.kind),
                           counted(instance.chunks, "chunk"), counted(instance.steps, "step"),
                           counted(instance.rounds, "round")));
    const int k = chunks_per_block(collective_.kind, topology_.world_size(), instance.chunks);
    Result result = solver.solve(k, instance.steps, instance.rounds, budget, work);
    if (result.answer == Answer::found && is_combining(collective_.kind)) mirror(result);
    return result;
  }

  static void mirror(Result& result) {
    result.schedule = mirrored(result.schedule);
    std::reverse(result.rounds.begin(), result.rounds.end());
  }

  /// Of all ways to share steps and rounds between the halves, the most even first.
  [[nodiscard]] Result all_reduce(const Instance& instance, const Budget& budget, unsigned work) {
    if (instance.steps < least_steps() ||
        instance.rounds < instance.chunks * rounds_per_chunk_ - 1e-6 ||
        instance.rounds < instance.steps) {
      return {Answer::impossible, {}, {}, Proof::bound, 1};
    }
    const int n = topology_.world_size();
    if (instance.chunks % n == 0) {
      Result composed = compose(instance, budget, work);
      if (composed.answer == Answer::found) return composed;
    }
    budget.say(fmt::format("all_reduce: {}, {}, {}, along trees", counted(instance.chunks, "chunk"),
                           counted(instance.steps, "step"), counted(instance.rounds, "round")));
    return trees_->solve(instance.chunks, instance.steps, instance.rounds, budget, work);
  }

  [[nodiscard]] Result compose(const Instance& instance, const Budget& budget, unsigned work) {
    // Some splits are beyond the solver; it is not to try one of them for ever.
    constexpr unsigned kWorkOfSplit = 200'000'000;
    work = work > 0 ? std::min(work, kWorkOfSplit) : kWorkOfSplit;
    const int k = instance.chunks / topology_.world_size();
    SpreadSolver& backwards = combine_ ? *combine_ : *spread_;
    std::vector<std::pair<int, int>> splits;  // steps and rounds of the reduce_scatter
    for (int steps = backwards.least_steps(); instance.steps - steps >= spread_->least_steps();
         ++steps) {
      for (int rounds = backwards.least_rounds(k);
           instance.rounds - rounds >= spread_->least_rounds(k); ++rounds) {
        if (rounds >= steps && instance.rounds - rounds >= instance.steps - steps) {
          splits.emplace_back(steps, rounds);
        }
      }
    }
    const auto uneven = [&](const std::pair<int, int>& split) {
      return std::abs(2 * split.first - instance.steps) +
             std::abs(2 * split.second - instance.rounds);
    };
    std::stable_sort(splits.begin(), splits.end(),
                     [&](const auto& a, const auto& b) { return uneven(a) < uneven(b); });
    for (const auto& [steps, rounds] : splits) {
      Result first = backwards.solve(k, steps, rounds, budget, work);
      if (first.answer != Answer::found) continue;
      const int left_steps = instance.steps - steps;
      const int left_rounds = instance.rounds - rounds;
      const bool halves = !combine_ && left_steps == steps && left_rounds == rounds;
      Result second = halves ? first : spread_->solve(k, left_steps, left_rounds, budget, work);
      if (second.answer == Answer::found) return joined(std::move(first), second);
    }
    return {};
  }

  /// Of every point of the all_gather's frontier, with the reduce_scatter that takes as long, or
  /// nearly so.
  [[nodiscard]] Frontier all_reduce_frontier(const Budget& budget, const Walk& walk) {
    const int n = topology_.world_size();
    Walk half = walk;
    half.most_chunks = walk.most_chunks / n;
    half.most_steps = walk.most_steps / 2;
    const FrontierFacts facts{spread_->least_steps(), spread_->rounds_per_chunk(), 1};
    const Frontier gathers =
        walk_frontier(facts, half, budget, "all_gather", [&](const Instance& instance) {
          return spread_->solve(instance.chunks, instance.steps, instance.rounds, budget,
                                walk.work);
        });
    Frontier frontier;
    frontier.least_steps = least_steps();
    frontier.least_rounds_per_chunk = rounds_per_chunk_;
    frontier.most_chunks = gathers.most_chunks * n;
    for (const Point& gather : gathers.points) {
      Result spread{Answer::found, gather.schedule, gather.rounds, Proof::none, 1};
      const std::optional<std::pair<Instance, Result>> combine =
          half_like(gather.instance, spread, budget, walk.work);
      if (!combine) continue;
      const Instance whole{gather.instance.chunks * n, gather.instance.steps + combine->first.steps,
                           gather.instance.rounds + combine->first.rounds};
      Result result = joined(combine->second, spread);
      add_point(frontier, whole, std::move(result));
    }
    return frontier;
  }

  [[nodiscard]] std::optional<std::pair<Instance, Result>> half_like(const Instance& wanted,
                                                                     const Result& spread,
                                                                     const Budget& budget,
                                                                     unsigned work) {
    if (!combine_) return std::make_pair(wanted, spread);
    constexpr int kMostMore = 2;
    for (int more = 0; more <= kMostMore; ++more) {
      const Instance instance{wanted.chunks, wanted.steps + more, wanted.rounds + more};
      Result result =
          combine_->solve(instance.chunks, instance.steps, instance.rounds, budget, work);
      if (result.answer == Answer::found) return std::make_pair(instance, std::move(result));
    }
    return std::nullopt;
  }

  void add_point(Frontier& frontier, const Instance& instance, Result result) const {
    const double rounds_per_chunk = static_cast<double>(instance.rounds) / instance.chunks;
    Point point;
    point.instance = instance;
    point.schedule = std::move(result.schedule);
    point.rounds = std::move(result.rounds);
    if (instance.steps <= frontier.least_steps) point.steps_optimal = Proof::bound;
    point.bandwidth_share = rounds_per_chunk_ / rounds_per_chunk;
    if (point.bandwidth_share > 1 - 1e-6) point.rounds_optimal = Proof::bound;
    frontier.points.push_back(std::move(point));
  }

  static Result joined(Result combine, const Result& spread) {
    mirror(combine);
    Result result;
    result.answer = Answer::found;
    result.schedule = all_reduce_of(combine.schedule, spread.schedule);
    result.rounds = std::move(combine.rounds);
    result.rounds.insert(result.rounds.end(), spread.rounds.begin(), spread.rounds.end());
    result.symmetry = std::min(combine.symmetry, spread.symmetry);
    return result;
  }

  Topology topology_;
  Routes routes_;
  Collective collective_;
  Settings settings_;
  std::optional<SpreadSolver> spread_;
  std::optional<SpreadSolver>
      combine_;  ///< of an all_reduce on a network that looks different backwards
  std::optional<SpreadSolver> trees_;  ///< of an all_reduce
  double rounds_per_chunk_ = 0;        ///< by the bandwidth bound, per C
};

Synthesizer::Synthesizer(const Topology& topology, Collective collective, Settings settings)
    : impl_(std::make_unique<Impl>(topology, collective, std::move(settings))) {}
Synthesizer::Synthesizer(Synthesizer&&) noexcept = default;
Synthesizer& Synthesizer::operator=(Synthesizer&&) noexcept = default;
Synthesizer::~Synthesizer() = default;

int Synthesizer::least_steps() const { return impl_->least_steps(); }
double Synthesizer::least_rounds_per_chunk() const { return impl_->least_rounds_per_chunk(); }
double Synthesizer::automorphisms() const { return impl_->automorphisms(); }

Result Synthesizer::solve(const Instance& instance, const Budget& budget, unsigned work) {
  return impl_->solve(instance, budget, work);
}

Frontier Synthesizer::pareto(const Budget& budget, const Walk& walk) {
  return impl_->pareto(budget, walk);
}

}  // namespace chorus::synth::exact
