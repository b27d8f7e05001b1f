// Routing and ordering under a sketch, and the strategies made of them.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "base/counted.hpp"
#include "base/index.hpp"
#include "chorus/error.hpp"
#include "model/schedule/contract.hpp"
#include "synth/ordering/predict.hpp"
#include "synth/sketch.hpp"
#include "synth/sketch/logical.hpp"
#include "synth/sketch/ways.hpp"

namespace chorus::synth {
namespace {

using enum CollectiveKind;

constexpr double kTooLong = std::numeric_limits<double>::infinity();
constexpr double kDetours[] = {1, -1, 0};
constexpr double kHurries[] = {0.03, 0.3, 3};
constexpr double kSwitchWeights[] = {0, 0.3, 3};
// What it is worth, of the time, that all links through switches are used as they are to be.
constexpr double kSwitchWorth = 0.1;
// Where there are so few hops, prices are blurred in several ways.
constexpr std::size_t kFewHops = 1'200;
constexpr std::uint64_t kSeeds = 3;
constexpr std::size_t kMostSimulatedHops = 40'000;  // simulated
constexpr int kMostSketchRanks = 64;
constexpr int kChunksPerBlock[] = {1, 2, 4, 8, 16};
constexpr double kLeastSketchChunkBytes = 4096;  // smaller ones are not worth a pipeline
constexpr double kWorthMoreChunks = 0.99;
constexpr double kStillRanks = 1.1;     // times the best: what is slower is told apart no further
constexpr std::size_t kBestTastes = 6;  // of nine or more: by three some lost 5 to 8 % at 1 MB

struct Candidate {
  MulticastRouting multicast;
  Schedule schedule;
  double seconds = 0;
  double score = 0;  // seconds, and what is lost by using switches otherwise than sketched
};

/// Tries tastes, keeps what is predicted to be fastest, and of equally fast ones what uses switches
/// as they are to be used.
class Sketching {
 public:
  Sketching(const Logical& logical, const Sketch& sketch, Collective collective, double size_bytes,
            const Budget& budget)
      : logical_(logical),
        collective_(collective),
        size_bytes_(size_bytes),
        budget_(budget),
        predictor_(logical.network()) {
    for (const Sketch::Switch& one : sketch.switches) {
      if (one.use != SwitchUse::any && use_ == SwitchUse::any) use_ = one.use;
    }
  }

  /// The first time by all tastes, then by those that were best.
  std::optional<Candidate> run(int pieces) {
    if (budget_.spent()) return std::nullopt;
    set_pieces(pieces);
    Ways ways(logical_, collective_, pieces, bytes_);
    std::optional<Candidate> best;
    std::vector<std::pair<double, RoutingWeights>> scores;
    for (const RoutingWeights& weights : tastes_.empty() ? all_tastes() : tastes_) {
      if (best && budget_.spent()) return best;
      scores.emplace_back(consider(ways, weights, best), weights);
    }
    std::ranges::stable_sort(scores, {}, &std::pair<double, RoutingWeights>::first);
    if (scores.size() > kBestTastes) scores.resize(kBestTastes);
    tastes_.clear();
    for (const auto& [score, weights] : scores) tastes_.push_back(weights);
    return best;
  }

 private:
  [[nodiscard]] std::vector<RoutingWeights> all_tastes() const {
    const std::size_t weights = use_ == SwitchUse::any ? 1 : std::size(kSwitchWeights);
    std::vector<RoutingWeights> all;
    for (const double detour : kDetours) {
      for (const double hurry : kHurries) {
        for (const double weight : std::span(kSwitchWeights).first(weights)) {
          all.push_back({detour, hurry, weight});
        }
      }
    }
    return all;
  }

  void set_pieces(int pieces) {
    const int n = logical_.network().world_size();
    const Schedule shape{"", collective_, n, num_blocks(collective_.kind, n) * pieces, {}};
    bytes_ = chunk_bytes(shape, size_bytes_);
  }

  /// The best score by these weights.
  double consider(Ways& ways, const RoutingWeights& weights, std::optional<Candidate>& best) {
    double score = kTooLong;
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
      if (best && budget_.spent()) break;
      const double give_up_s =
          std::min(budget_.useless_s, best ? kStillRanks * best->seconds : kTooLong);
      Candidate candidate{ways.find(weights, budget_.seed + seed, budget_, give_up_s), {}, 0, 0};
      if (candidate.multicast.hops.size() > kMostSimulatedHops) break;
      if (best && candidate.multicast.hops == best->multicast.hops) {
        score = std::min(score, best->score);
      } else if (best && ways.load_s() >= best->seconds) {
        score = std::min(score, ways.load_s());
      } else {
        candidate.schedule = in_order("sketched", logical_.network(), candidate.multicast, bytes_);
        candidate.seconds = predictor_.seconds(candidate.schedule, size_bytes_, give_up_s);
        candidate.score = candidate.seconds * (1 + kSwitchWorth * misused(ways.switch_links()));
        score = std::min(score, candidate.score);
        if (!best || candidate.score < best->score) best = std::move(candidate);
      }
      if (best->multicast.hops.size() > kFewHops) break;
    }
    return score;
  }

  /// The share of the links through switches that are used, or are not, against the sketch.
  [[nodiscard]] double misused(int used) const {
    int all = 0;
    for (const Edge& edge : logical_.network().edges()) {
      if (logical_.use(edge) != SwitchUse::any) ++all;
    }
    if (all == 0) return 0;
    const double share = static_cast<double>(used) / all;
    return use_ == SwitchUse::fewest ? share : 1 - share;
  }

  const Logical& logical_;
  Collective collective_;
  double size_bytes_;
  const Budget& budget_;
  Predictor predictor_;
  SwitchUse use_ = SwitchUse::any;
  double bytes_ = 0;
  std::vector<RoutingWeights> tastes_;  // the best of the last run
};

std::vector<Schedule> with_inferred(const Task& task, const Budget& budget) {
  const CollectiveKind kind = task.collective.kind;
  if (kind != all_gather && kind != broadcast) return {};
  const int n = task.network.world_size();
  if (n > kMostSketchRanks || n < 2) return {};
  const double block_bytes = task.size_bytes / (kind == broadcast ? 1 : n);
  std::optional<Candidate> best;
  for (const Sketch& sketch : inferred_sketches(task.network)) {
    const Logical logical(task.network, sketch);
    Sketching sketching(logical, sketch, task.collective, task.size_bytes, budget);
    double before_s = kTooLong;
    for (const int pieces : kChunksPerBlock) {
      const std::size_t blocks = at(n) * at(kind == broadcast ? 1 : n);
      if (pieces > 1 && (block_bytes / pieces < kLeastSketchChunkBytes ||
                         blocks * at(pieces) > kMostSimulatedHops / 4)) {
        break;
      }
      budget.say(fmt::format("sketch \"{}\", {} per block", sketch.name, counted(pieces, "chunk")));
      std::optional<Candidate> found = sketching.run(pieces);
      if (!found) break;
      const double seconds = found->seconds;
      if (!best || seconds < best->seconds) best = std::move(found);
      if (seconds > before_s * kWorthMoreChunks) break;
      before_s = seconds;
    }
  }
  std::vector<Schedule> schedules;
  if (best && best->seconds < kTooLong) schedules.push_back(std::move(best->schedule));
  return schedules;
}

}  // namespace

std::optional<Schedule> sketched(const Network& network, const Sketch& sketch,
                                 Collective collective, double size_bytes, const Budget& budget) {
  const Logical forward(network, sketch);  // refuses before anything else
  const bool combines = collective.kind == reduce_scatter || collective.kind == reduce;
  Collective spreads = collective;
  if (collective.kind == reduce_scatter) spreads.kind = all_gather;
  if (collective.kind == reduce) spreads.kind = broadcast;
  if (spreads.kind != all_gather && spreads.kind != broadcast && spreads.kind != all_to_all) {
    return std::nullopt;
  }
  if (network.world_size() < 2) return std::nullopt;
  const Logical logical = combines ? forward.reversed() : forward;
  Sketching sketching(logical, sketch, spreads, size_bytes, budget);
  std::optional<Candidate> best = sketching.run(sketch.chunks_per_block);
  if (!best) return std::nullopt;
  return combines ? mirrored(best->schedule) : std::move(best->schedule);
}

Strategy sketched_strategy() { return {.name = "sketched", .make = with_inferred}; }

Strategy sketched_strategy(const Sketch& sketch) {
  return {.name = "sketched",
          .make =
              [sketch](const Task& task, const Budget& budget) {
                std::vector<Schedule> schedules;
                if (auto schedule =
                        sketched(task.network, sketch, task.collective, task.size_bytes, budget)) {
                  schedules.push_back(*std::move(schedule));
                }
                return schedules;
              },
          .combines = true};
}

}  // namespace chorus::synth
