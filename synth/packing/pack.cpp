#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/index.hpp"
#include "chorus/error.hpp"
#include "model/price/cost.hpp"
#include "synth/packing.hpp"
#include "synth/packing/graph.hpp"
#include "synth/packing/growing.hpp"
#include "synth/packing/rerouting.hpp"
#include "synth/packing/splitting.hpp"

namespace chorus::synth {
namespace {

constexpr int kMostTreeHops = 60'000;  // of all trees together
constexpr double kGoodEnough = 0.98;   // of the limit: not worth more trees or another attempt

class Packer {
 public:
  Packer(const Topology& topology, Direction direction, const PackingOptions& options,
         const Budget& budget)
      : network_(thinned(Network(topology, direction), options.edges_per_rank)),
        graph_(topology, direction),
        topology_(topology),
        direction_(direction),
        options_(options),
        budget_(budget),
        n_(topology.world_size()) {
    require_connected(topology, network_);
    weights_.assign(at(graph_.num_nodes), 0);
    for (Rank rank = 0; rank < n_; ++rank) {
      if (!options.root || *options.root == rank) ++weights_[at(graph_.node_of[at(rank)])];
    }
    sources_ = options.root ? 1 : n_;
    limit_ = cut_rate(graph_, weights_);
  }

  std::optional<TreePacking> pack() {
    if (budget_.spent()) return std::nullopt;
    std::optional<TreePacking> best;
    const bool has_limit = limit_ < std::numeric_limits<double>::infinity();
    if (has_limit && !options_.by_prices_alone) best = by_cuts();
    if (best && best->share() >= kGoodEnough) return best;
    if (best && budget_.spent()) return best;
    std::optional<TreePacking> other = by_prices();
    if (!best || (other && other->rate_gb_s > best->rate_gb_s)) best = std::move(other);
    return best;
  }

 private:
  struct Size {
    int trees = 0;     // per root
    double share = 0;  // of the limit
  };

  [[nodiscard]] TreeDemand demand(Size size) const {
    TreeDemand demand{weights_, limit_ * size.share / size.trees};
    for (int& supply : demand.supply) supply *= size.trees;
    return demand;
  }
  [[nodiscard]] bool possible(Size size) const { return cuts_allow(graph_, demand(size)); }

  [[nodiscard]] int most_trees() const {
    const int affordable = kMostTreeHops / (sources_ * std::max(n_ - 1, 1));
    return std::clamp(options_.most_trees, 1, std::max(affordable, 1));
  }

  /// The fewest trees that reach the limit, or those that come nearest.
  [[nodiscard]] Size best_size() const {
    const int first = options_.trees.value_or(1);
    const int last = options_.trees.value_or(most_trees());
    for (int trees = first; trees <= last && !budget_.spent(); ++trees) {
      if (possible({trees, 1})) return {trees, 1};
    }
    Size best{first, 0};
    for (int trees = first; trees <= last && !budget_.spent(); ++trees) {
      // Twice the trees for the last half percent are not worth their messages.
      double low = best.share == 0 ? 0 : best.share + 0.004;
      if (low >= 1) break;
      if (low > 0 && !possible({trees, low})) continue;
      for (double high = 1; high - low > 0.0005;) {
        const double middle = (low + high) / 2;
        (possible({trees, middle}) ? low : high) = middle;
      }
      if (low > best.share) best = {trees, low};
    }
    return best;
  }

  std::optional<TreePacking> by_cuts() {
    budget_.say("trees: looking for the best rate");
    Size size = best_size();
    const RoutePieces routes(topology_, Routes(topology_), direction_);
    for (int attempt = 0; attempt < 12 && size.share > 0 && !budget_.spent(); ++attempt) {
      budget_.say(
          fmt::format("trees: {} per root at {:.1f} % of the limit", size.trees, 100 * size.share));
      if (auto pairs = without_switches(graph_, routes, demand(size), budget_)) {
        std::vector<int> supply;
        for (const int node : graph_.terminals) supply.push_back(weights_[at(node)] * size.trees);
        if (const auto grown = grow_trees(*pairs, supply, budget_)) {
          return improved(of_ranks(*grown, size.trees), size);
        }
      }
      size.share *= 0.97;
    }
    return std::nullopt;
  }

  /// From nothing, guided by the prices alone.
  std::optional<TreePacking> by_prices() {
    budget_.say("trees: by prices");
    const int trees = options_.trees.value_or(std::min(most_trees(), sources_ == 1 ? 16 : 4));
    std::vector<SpanningTree> missing;
    for (Rank root = 0; root < n_; ++root) {
      if (options_.root && *options_.root != root) continue;
      missing.insert(missing.end(), at(trees), SpanningTree{root, {}});
    }
    return improved(missing, {trees, 1});
  }

  /// Mends what loads its routes more than it should, and measures the result.
  [[nodiscard]] std::optional<TreePacking> improved(const std::vector<SpanningTree>& trees,
                                                    Size size) const {
    // Seconds per byte of one tree's data at which the wanted rate is reached.
    const double goal = 1 / (demand(size).unit_gb_s * 1e9);
    const std::vector<PlacedTree> mended = rerouted(placed(network_, trees), goal, budget_);
    if (mended.empty()) return std::nullopt;
    TreePacking packing{size.trees, {}, 0, limit_ * sources_, 0};
    for (const PlacedTree& one : mended) packing.trees.push_back(one.tree);
    packing.rate_gb_s = sources_ * size.trees / (worst_load(mended) * 1e9);
    for (const SpanningTree& tree : packing.trees) {
      for (Rank rank = 0; rank < n_; ++rank) {
        int depth = 0;
        for (Rank above = tree.parent[at(rank)]; above >= 0; above = tree.parent[at(above)]) {
          ++depth;
        }
        packing.depth = std::max(packing.depth, depth);
      }
    }
    return packing;
  }

  /// Trees of nodes as trees of ranks, dealt to the ranks on the root's node.
  [[nodiscard]] std::vector<SpanningTree> of_ranks(const std::vector<GrownTree>& grown,
                                                   int trees_per_root) const {
    std::vector<std::vector<SpanningTree>> by_root(at(n_));
    for (const GrownTree& tree : grown) {
      int copies = tree.copies;
      for (const Rank root : graph_.ranks_on[at(graph_.terminals[at(tree.root)])]) {
        if (options_.root && *options_.root != root) continue;
        std::vector<SpanningTree>& dealt = by_root[at(root)];
        const int taken = std::min(trees_per_root - static_cast<int>(dealt.size()), copies);
        dealt.insert(dealt.end(), at(taken), of_ranks(tree, root));
        copies -= taken;
      }
    }
    std::vector<SpanningTree> trees;
    for (const auto& some : by_root) trees.insert(trees.end(), some.begin(), some.end());
    return trees;
  }

  /// One rank of each node receives and sends on; the others on the node have it from there.
  [[nodiscard]] SpanningTree of_ranks(const GrownTree& tree, Rank root) const {
    const auto speaker = [&](int vertex) {
      return vertex == tree.root ? root : graph_.ranks_on[at(graph_.terminals[at(vertex)])].front();
    };
    SpanningTree result{root, std::vector<Rank>(at(n_), -1)};
    for (std::size_t vertex = 0; vertex < tree.parent.size(); ++vertex) {
      const Rank first = speaker(static_cast<int>(vertex));
      for (const Rank rank : graph_.ranks_on[at(graph_.terminals[vertex])]) {
        if (rank != first) result.parent[at(rank)] = first;
      }
      if (first != root) result.parent[at(first)] = speaker(tree.parent[vertex]);
    }
    return result;
  }

  const Network network_;
  const CapacityGraph graph_;
  const Topology& topology_;
  Direction direction_;
  const PackingOptions& options_;
  const Budget& budget_;
  int n_;
  int sources_ = 0;
  std::vector<int> weights_;  // by node: ranks on it that have something to spread
  double limit_ = 0;          // GB/s from each source
};

}  // namespace

double least_by_cuts(const Topology& topology, Collective collective) {
  using enum CollectiveKind;
  const bool combines = collective.kind == reduce_scatter || collective.kind == reduce;
  const bool rooted = collective.kind == broadcast || collective.kind == reduce;
  if (!combines && !rooted && collective.kind != all_gather) return 0;
  const CapacityGraph graph(topology, combines ? Direction::reversed : Direction::forward);
  std::vector<int> weights(at(graph.num_nodes), 0);
  for (Rank rank = 0; rank < topology.world_size(); ++rank) {
    if (!rooted || rank == collective.root) ++weights[at(graph.node_of[at(rank)])];
  }
  const double share = rooted ? 1.0 : 1.0 / topology.world_size();
  return share / (cut_rate(graph, weights) * 1e9);
}

std::optional<TreePacking> pack_trees(const Topology& topology, Direction direction,
                                      const PackingOptions& options, const Budget& budget) {
  const int n = topology.world_size();
  if (options.root && (*options.root < 0 || *options.root >= n)) {
    throw InputError(fmt::format("root {} is not a rank of the topology '{}', which has {}",
                                 *options.root, topology.name, n));
  }
  return Packer(topology, direction, options, budget).pack();
}

}  // namespace chorus::synth
