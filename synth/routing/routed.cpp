#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "base/index.hpp"
#include "model/schedule/contract.hpp"
#include "synth/multicast_routing.hpp"
#include "synth/ordering/predict.hpp"
#include "synth/routing.hpp"
#include "synth/routing/router.hpp"

namespace chorus::synth {
namespace {

constexpr double kNearlyEqual = 1.005;  // of a load: not worth more pieces
constexpr double kBalanced = 1.01;      // times the bound: no more pieces are tried
constexpr double kCloseToBound = 1.01;  // times what no schedule can beat
constexpr double kAtLimit = 1.005;
constexpr double kWorthMoreRoutes = 0.997;  // of the time: not worth more chunks
constexpr int kPieces[] = {1, 2, 3, 4, 6, 8, 12};
constexpr int kMostCuts = 16;
// See Loads: the first balances and is short enough, the second is shorter but may not balance.
constexpr double kUseWeights[] = {0.1, 0.5, 0.02};
constexpr std::size_t kManyDemands = 5000;  // then the first weight has to do
constexpr std::size_t kFewDemands = 500;    // routings of so few differ by chance: more are tried
constexpr int kRounds = 5;
constexpr double kLeastPieceBytes = 256;  // smaller ones do not fill a message
constexpr double kLeastCutBytes = 4096;   // nor are these worth a pipeline
// Of more than this one piece has to do.
constexpr std::size_t kManyHops = 150'000;
constexpr std::size_t kMostTimed = 700'000;   // of all candidates
constexpr std::size_t kMostHops = 3'000'000;  // to put them in order takes ten seconds
// See Loads. Lanes of a dragonfly that carry one block alone cannot relay; by 0.1 some carry 40.
constexpr double kLaneWeight = 0.5, kLaneStep = 0.25;  // the first, and how far off the second is
constexpr double kLaneNextStep = 0.6;                  // times the step before: never down to 0
constexpr int kLaneTries = 4, kFewLaneTries = 2;
constexpr int kLanePieces = 4;   // so many at least make lanes alike
constexpr double kLate = 0.985;  // of the time: if the load is less, lanes may be the cause

std::vector<Demand> demands_of(Collective collective, const Network& network) {
  const int n = network.world_size();
  std::vector<Demand> demands;
  for (Rank src = 0; src < network.cells().size(); ++src) {
    for (Rank dst = 0; dst < n; ++dst) {
      if (src == dst) continue;
      if (collective.kind == CollectiveKind::gather && dst != collective.root) continue;
      if (collective.kind == CollectiveKind::scatter && src != collective.root) continue;
      demands.push_back({src, dst});
    }
  }
  return demands;
}

/// The block that a demand carries, in the collective's numbering.
int block_of(Collective collective, int n, Demand demand) {
  if (collective.kind == CollectiveKind::gather) return demand.src;
  if (collective.kind == CollectiveKind::scatter) return demand.dst;
  return demand.src * n + demand.dst;
}

/// Hops of a routing whose every piece is cut once more into `cuts`.
MulticastRouting multicast_of(const Network& network, Collective collective,
                              const std::vector<Demand>& demands, const Routing& routing,
                              int cuts) {
  const int n = network.world_size();
  const int pieces = routing.pieces * cuts;
  MulticastRouting multicast{collective, num_blocks(collective.kind, n) * pieces, {}};
  for (std::size_t i = 0; i < demands.size(); ++i) {
    const int block = block_of(collective, n, demands[i]);
    for (int piece = 0; piece < pieces; ++piece) {
      // Neighbouring chunks go different ways, so that the ways fill at the same time.
      Rank src = demands[i].src;
      for (const int index : routing.paths[i * at(routing.pieces) + at(piece % routing.pieces)]) {
        const Rank dst = end_of(network, network.edges()[at(index)], src);
        multicast.hops.push_back({src, dst, block * pieces + piece});
        src = dst;
      }
    }
  }
  return multicast;
}

std::size_t hops_of(const Routing& routing) {
  std::size_t hops = 0;
  for (const Path& path : routing.paths) hops += path.size();
  return hops;
}

/// Tries routings and cuts, keeps what is predicted to be fastest.
class RoutingChoice {
 public:
  RoutingChoice(const Network& network, Collective collective, double size_bytes,
                const Budget& budget)
      : network_(network),
        collective_(collective),
        size_bytes_(size_bytes),
        block_bytes_(size_bytes / network.world_size()),
        budget_(budget),
        demands_(demands_of(collective, network)),
        router_(network, demands_, block_bytes_, budget) {}

  std::optional<Schedule> run() {
    if (!router_.connected() || budget_.spent()) return std::nullopt;
    const Routing shortest = router_.shortest(1);
    const std::size_t hops = hops_of(shortest);
    if (hops > kMostHops) return std::nullopt;
    const double alpha_s = longest_alpha_s(shortest);
    const double load_s = shortest.load_s * block_bytes_;
    // Of many that are not timed, to put those in order that will lose takes too long.
    if (hops <= kMostCompared || load_s < alpha_s) (void)consider(shortest, 1);
    if (load_s >= 0.05 * alpha_s) balance(alpha_s);
    return std::move(best_);
  }

 private:
  /// Routings of least load, in as many pieces as that takes, in as many cuts as pay; then, if that
  /// still takes longer than its load, one whose lanes are alike.
  void balance(double alpha_s) {
    std::vector<Routing> routings;
    double floor_s = 0, load_s = 0;
    const int rounds = demands_.size() <= kFewDemands ? kRounds : 1;
    for (int i = 0; i < rounds * static_cast<int>(std::size(kUseWeights)); ++i) {
      const double use_weight = kUseWeights[at(i) % std::size(kUseWeights)];
      if (routings.empty()) {
        routings = in_more_and_more_pieces(use_weight);
      } else {
        routings = {router_.balanced(routings.back().pieces, use_weight)};
      }
      floor_s = std::max(alpha_s, router_.bound_s() * block_bytes_);
      load_s = std::max(load_s, routings.back().load_s * block_bytes_);
      cut(routings.back(), floor_s);
      // One piece may be faster for its lower latency.
      if (routings.back().pieces > 1 && routings.front().pieces == 1)
        cut(routings.front(), floor_s);
      if (done(floor_s)) return;
      if (demands_.size() > kManyDemands) break;
    }
    if (demands_.size() > kManyHops) return;
    if (load_s >= kLate * best_s_) return;
    const int pieces = std::max(most_pieces(kLanePieces), routings.back().pieces);
    double lane_weight = kLaneWeight, step = kLaneStep;
    for (int tries = demands_.size() <= kManyDemands ? kLaneTries : kFewLaneTries; tries > 0;
         --tries) {
      const Routing even = router_.balanced(pieces, kUseWeights[0], lane_weight);
      cut(even, floor_s);
      if (done(floor_s)) return;
      // What makes lanes alike loads links more: once that is what takes the time, less of it.
      const bool late = even.load_s * block_bytes_ < kLate * best_s_;
      lane_weight += late ? step : -step;
      step *= kLaneNextStep;
    }
  }

  /// As many as `wanted`, if they are not too many nor too small.
  [[nodiscard]] int most_pieces(int wanted) const {
    while (wanted > 1 &&
           (demands_.size() * at(wanted) > kManyHops || block_bytes_ / wanted < kLeastPieceBytes)) {
      wanted /= 2;
    }
    return wanted;
  }

  /// Out of work, too, but not with a routing at hand and nothing made of it, unless somebody
  /// waits.
  [[nodiscard]] bool done(double floor_s) const {
    return best_s_ <= std::max(floor_s * kCloseToBound, budget_.limit_s * kAtLimit) ||
           (budget_.spent() && (best_ || budget_.interrupted()));
  }

  /// Never empty; the last is the least loaded, if only a little the one of fewest pieces.
  std::vector<Routing> in_more_and_more_pieces(double use_weight) {
    std::vector<Routing> routings;
    int vain = 0;
    for (const int pieces : kPieces) {
      if (pieces > 1 && (budget_.spent() || vain == 3 || most_pieces(pieces) < pieces)) break;
      Routing routing = router_.balanced(pieces, use_weight);
      const bool better =
          routings.empty() || routing.load_s < routings.back().load_s / kNearlyEqual;
      vain = better ? 0 : vain + 1;
      if (better) routings.push_back(std::move(routing));
      if (routings.back().load_s <= router_.bound_s() * kBalanced) break;
    }
    return routings;
  }

  /// Whole, and in more and more pieces that follow each other.
  void cut(const Routing& routing, double floor_s) {
    int vain = 0;
    for (int cuts = 1; cuts <= kMostCuts && vain < 2 && !done(floor_s); cuts *= 2) {
      const bool tiny = block_bytes_ / (routing.pieces * cuts) < kLeastCutBytes;
      if (cuts > 1 && (tiny || compared_ + hops_of(routing) * at(cuts) > kMostTimed)) return;
      vain = consider(routing, cuts) ? 0 : vain + 1;
    }
  }

  /// True if it is better than what there was.
  bool consider(const Routing& routing, int cuts) {
    const double must_beat_s = best_ ? best_s_ * kWorthMoreRoutes : budget_.useless_s;
    if (routing.load_s * block_bytes_ >= must_beat_s) return false;
    const MulticastRouting multicast = multicast_of(network_, collective_, demands_, routing, cuts);
    const double bytes = block_bytes_ / (routing.pieces * cuts);
    Schedule schedule = in_order("routed", network_, multicast, bytes);
    double seconds = routing.load_s * block_bytes_ + longest_alpha_s(routing);
    if (multicast.hops.size() <= kMostCompared) {
      seconds = seconds_of(schedule, must_beat_s);
      compared_ += multicast.hops.size();
    }
    budget_.say(
        fmt::format("routed in {} pieces: {:.3g} ms", routing.pieces * cuts, seconds * 1e3));
    if (seconds >= must_beat_s) return false;
    best_ = std::move(schedule);
    best_s_ = seconds;
    return true;
  }

  double seconds_of(const Schedule& schedule, double give_up_s) {
    if (!predictor_) predictor_.emplace(network_);
    return predictor_->seconds(schedule, size_bytes_, give_up_s);
  }

  [[nodiscard]] double longest_alpha_s(const Routing& routing) const {
    double longest = 0;
    for (const Path& path : routing.paths) {
      double alpha_s = 0;
      for (const int edge : path) alpha_s += network_.edges()[at(edge)].alpha_s;
      longest = std::max(longest, alpha_s);
    }
    return longest;
  }

  const Network& network_;
  Collective collective_;
  double size_bytes_;
  double block_bytes_;
  const Budget& budget_;
  std::vector<Demand> demands_;
  Router router_;
  std::optional<Predictor> predictor_;
  std::optional<Schedule> best_;
  double best_s_ = std::numeric_limits<double>::infinity();
  std::size_t compared_ = 0;  // hops of all that was timed
};

}  // namespace

std::optional<Schedule> routed(const Network& network, Collective collective, double size_bytes,
                               const Budget& budget) {
  const CollectiveKind kind = collective.kind;
  const bool exchanges = kind == CollectiveKind::all_to_all || kind == CollectiveKind::gather ||
                         kind == CollectiveKind::scatter;
  if (!exchanges || network.world_size() < 2) return std::nullopt;
  if (network.folded() && kind != CollectiveKind::all_to_all) return std::nullopt;
  return RoutingChoice(network, collective, size_bytes, budget).run();
}

}  // namespace chorus::synth
