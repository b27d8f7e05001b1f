#include "synth/greedy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "base/disjoint_sets.hpp"
#include "base/index.hpp"
#include "model/schedule/contract.hpp"
#include "synth/greedy/run.hpp"
#include "synth/multicast_routing.hpp"
#include "synth/ordering/predict.hpp"

namespace chorus::synth {
namespace {

using enum CollectiveKind;

constexpr double kMuchSlower = 2.5;        // edges between clusters, against those within
constexpr double kLeastChunkBytes = 4096;  // smaller ones are not worth a pipeline
constexpr std::int64_t kMostHops = 400'000;
constexpr std::int64_t kHopsOfAllSeeds = 1'500'000;
constexpr int kMostSeeds = 16;
constexpr int kFinalists = 3;  // runs that are simulated
constexpr double kMayBeFaster = 1.2;
constexpr double kWorthIt = 0.99;  // of the time: not worth more chunks

class Greedy {
 public:
  Greedy(const Network& network, Collective collective, double size_bytes, const Budget& budget,
         const GreedyOptions& options)
      : network_(network),
        ground_(network),
        collective_(collective),
        size_bytes_(size_bytes),
        budget_(budget),
        options_(options) {}

  std::optional<Schedule> run() {
    const int chunks = choose_chunks();
    if (chunks == 0) return std::nullopt;
    // Other seeds and fair sharing may make it somewhat faster.
    if (trial_ && trial_->run.seconds > kMayBeFaster * budget_.useless_s) return std::nullopt;
    const int seeds = options_.seeds > 0 ? options_.seeds : seeds_for(hops(chunks));
    std::vector<Trial> trials;
    for (int i = 0; i < seeds; ++i) {
      auto trial = attempt(chunks, budget_.seed + static_cast<std::uint64_t>(i));
      if (trial) trials.push_back(*std::move(trial));
      budget_.say(fmt::format("greedy: {} of {} seeds", i + 1, seeds));
    }
    if (trial_) trials.push_back(std::move(*trial_));
    return best_of(std::move(trials), chunks);
  }

 private:
  struct Trial {
    GreedyRun run;
    int chunks = 0;
    std::uint64_t seed = 0;
  };

  [[nodiscard]] std::int64_t hops(int chunks) const {
    const auto n = static_cast<std::int64_t>(network_.world_size());
    const bool n_squared = collective_.kind == all_gather || collective_.kind == all_to_all;
    return (n_squared ? n * (n - 1) : n - 1) * chunks;
  }

  static int seeds_for(std::int64_t hops) {
    return static_cast<int>(
        std::clamp<std::int64_t>(kHopsOfAllSeeds / std::max<std::int64_t>(hops, 1), 1, kMostSeeds));
  }

  [[nodiscard]] double chunk_bytes(int chunks) const {
    const bool whole = collective_.kind == broadcast;
    return size_bytes_ / (whole ? 1 : network_.world_size()) / chunks;
  }

  std::optional<Trial> attempt(int chunks, std::uint64_t seed) const {
    const double bytes = chunk_bytes(chunks);
    const bool spreads = collective_.kind == all_gather || collective_.kind == broadcast;
    auto run = spreads ? spread_greedily(ground_, collective_, chunks, bytes, seed, budget_)
                       : exchange_greedily(ground_, collective_, chunks, bytes, seed, budget_);
    if (!run) return std::nullopt;
    return Trial{*std::move(run), chunks, seed};
  }

  /// Chunks per block: more as long as one run gets faster by it. 0 if no run ends.
  int choose_chunks() {
    if (options_.chunks_per_block > 0) return options_.chunks_per_block;
    int best = 0;
    double best_s = 0;
    int vain = 0;
    for (int chunks = 1; chunks <= 256 && vain < 2; chunks *= 2) {
      if (best > 0 && (chunk_bytes(chunks) < kLeastChunkBytes || hops(chunks) > kMostHops)) break;
      std::optional<Trial> trial = attempt(chunks, budget_.seed);
      if (!trial) break;
      budget_.say(fmt::format("greedy: {} chunk{} per block, {:.3g} ms", chunks,
                              chunks == 1 ? "" : "s", trial->run.seconds * 1e3));
      const bool better = best == 0 || trial->run.seconds < best_s * kWorthIt;
      vain = better ? 0 : vain + 1;
      if (!better) continue;
      best = chunks;
      best_s = trial->run.seconds;
      trial_ = std::move(trial);
    }
    return best;
  }

  std::optional<Schedule> best_of(std::vector<Trial> trials, int chunks) {
    if (trials.empty()) return std::nullopt;
    std::sort(trials.begin(), trials.end(), [](const Trial& a, const Trial& b) {
      return std::pair(a.run.seconds, a.seed) < std::pair(b.run.seconds, b.seed);
    });
    const int num_chunks = num_blocks(collective_.kind, network_.world_size()) * chunks;
    const Predictor predictor(network_);
    const bool simulates = trials.front().run.hops.size() <= kMostCompared;
    if (trials.size() > kFinalists || !simulates) trials.resize(simulates ? kFinalists : 1);
    std::optional<Schedule> best;
    double best_s = std::numeric_limits<double>::infinity();
    for (Trial& trial : trials) {
      const MulticastRouting multicast{collective_, num_chunks, std::move(trial.run.hops)};
      Schedule schedule = as_begun("greedy", network_, multicast);
      if (!simulates) return schedule;
      const double seconds = predictor.seconds(schedule, size_bytes_, best_s);
      if (best && seconds >= best_s) continue;
      best = std::move(schedule);
      best_s = seconds;
    }
    return best;
  }

  const Network& network_;
  const GreedyGround ground_;
  const Collective collective_;
  const double size_bytes_;
  const Budget& budget_;
  const GreedyOptions& options_;
  std::optional<Trial> trial_;  // the best of choose_chunks()
};

/// The run of the mirror image: of what copies on the network turned round.
std::optional<Schedule> combining(const Network& network, Collective collective, double size_bytes,
                                  const Budget& budget, const GreedyOptions& options) {
  const Network turned = network.reversed();
  Collective copying = collective;
  copying.kind = collective.kind == reduce ? broadcast : all_gather;
  const auto spread = greedy(turned, copying, size_bytes, budget, options);
  if (!spread) return std::nullopt;
  return mirrored(*spread);
}

}  // namespace

GreedyGround::GreedyGround(const Network& net) : network(net), over(net.resources().size()) {
  std::vector<double> betas;
  for (std::size_t i = 0; i < net.edges().size(); ++i) {
    betas.push_back(net.edges()[i].beta_s_per_byte);
    for (const int resource : net.edges()[i].resources) {
      std::vector<int>& edges = over[at(resource)];
      if (edges.empty() || edges.back() != static_cast<int>(i))
        edges.push_back(static_cast<int>(i));
    }
  }
  std::sort(betas.begin(), betas.end());
  double slow = 0;  // edges from here on are slow
  for (std::size_t i = 1; i < betas.size() && slow == 0; ++i) {
    if (betas[i] > betas[i - 1] * kMuchSlower) slow = betas[i];
  }
  DisjointSets clusters(at(net.world_size()));
  for (const Edge& edge : net.edges()) {
    if (slow == 0 || edge.beta_s_per_byte < slow) clusters.join(edge.src, edge.dst);
  }
  cluster = clusters.sets();
  std::vector<int> number(cluster.size(), -1);
  num_clusters = 0;
  for (int& of : cluster) {
    int& its = number[at(of)];
    if (its < 0) its = num_clusters++;
    of = its;
  }
}

std::optional<Schedule> greedy(const Network& network, Collective collective, double size_bytes,
                               const Budget& budget, const GreedyOptions& options) {
  if (network.world_size() < 2) return std::nullopt;
  switch (collective.kind) {
    case barrier:
      return std::nullopt;
    case reduce:
    case reduce_scatter:
      return combining(network, collective, size_bytes, budget, options);
    case all_reduce: {
      // Both halves move the whole buffer once, in equal chunks.
      const auto spread =
          greedy(network, {all_gather}, size_bytes, budget.without_times(), options);
      if (!spread) return std::nullopt;
      GreedyOptions same = options;
      same.chunks_per_block = spread->num_chunks / network.world_size();
      const auto combine =
          combining(network, {reduce_scatter}, size_bytes, budget.without_times(), same);
      if (!combine) return std::nullopt;
      return all_reduce_of(*combine, *spread);
    }
    default:
      return Greedy(network, collective, size_bytes, budget, options).run();
  }
}

}  // namespace chorus::synth
