#include "synth/packing/rerouting.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <queue>
#include <random>
#include <span>
#include <utility>

#include "base/check.hpp"
#include "base/index.hpp"
#include "base/work.hpp"
#include "synth/shuffle.hpp"

namespace chorus::synth {
namespace {

constexpr int kReroutingPatience = 12;  // rounds without progress
// Looks at edges in all rounds together, and after how many of them prices are set anew.
constexpr std::size_t kMostReroutingLooks = 2'000'000'000;
constexpr std::size_t kLooksRepriced = 50'000'000;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

class Rerouting {
 public:
  Rerouting(std::vector<PlacedTree> trees, std::uint64_t seed)
      : trees_(std::move(trees)), resources_(trees_.front().network->resources()), random_(seed) {
    load_.assign(resources_.size(), 0);
    price_.assign(resources_.size(), 0);
    std::size_t looks = 0;
    for (const PlacedTree& placed : trees_) looks += placed.network->edges().size();
    stride_ = 1 + looks / kLooksRepriced;
    for (const PlacedTree& placed : trees_) {
      if (!placed.tree.parent.empty()) change_load(placed, 1);
    }
  }

  [[nodiscard]] double worst() const {
    return load_.empty() ? 0 : *std::max_element(load_.begin(), load_.end());
  }
  [[nodiscard]] double evenness() const {
    double sum = 0, loaded = 0;
    for (const double load : load_) {
      sum += load;
      loaded += load > 0 ? 1 : 0;
    }
    return sum > 0 ? sum / (loaded * worst()) : 1;
  }
  [[nodiscard]] const std::vector<PlacedTree>& trees() const { return trees_; }
  /// At edges, so far.
  [[nodiscard]] std::size_t looks() const { return looks_; }

  /// Trees that are not there yet, in an order in which no root is served first.
  bool build_missing(const Budget& budget) {
    for (const std::size_t index : shuffled()) {
      if (!trees_[index].tree.parent.empty()) continue;
      if (budget.spent()) return false;
      rebuild(trees_[index], 8);
    }
    return true;
  }

  void round(double steepness, const Budget& budget) {
    for (const std::size_t index : shuffled()) {
      if (budget.spent()) return;
      PlacedTree& placed = trees_[index];
      if (!touches_worst(placed)) continue;
      const double before = worst();
      const SpanningTree old = placed.tree;
      change_load(placed, -1);
      rebuild(placed, steepness);
      if (worst() <= before * (1 + 1e-12)) continue;
      change_load(placed, -1);
      placed.tree = old;
      change_load(placed, 1);
    }
  }

  /// Of the way that takes a piece longest, all hops but the slowest one.
  [[nodiscard]] double fill() const {
    double longest = 0;
    for (const PlacedTree& placed : trees_) {
      const std::size_t n = placed.tree.parent.size();
      std::vector<double> reached(n, 0), slowest(n, 0);
      for (const Rank rank : from_root(placed.tree)) {
        const Rank parent = placed.tree.parent[at(rank)];
        if (parent < 0) continue;
        const double hop = hop_time(edge_to(placed, rank));
        reached[at(rank)] = reached[at(parent)] + hop;
        slowest[at(rank)] = std::max(slowest[at(parent)], hop);
        longest = std::max(longest, reached[at(rank)] - slowest[at(rank)]);
      }
    }
    return longest;
  }

 private:
  /// Per byte of a tree's data. Where all trees flow at once a hop gets its share of what it
  /// crosses.
  [[nodiscard]] double hop_time(const Edge& edge) const {
    double most = 0;
    for (const int resource : edge.resources) most = std::max(most, load_[at(resource)]);
    return most;
  }

  std::vector<std::size_t> shuffled() {
    std::vector<std::size_t> order(trees_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    shuffle(order, random_);
    return order;
  }

  /// The edge over which a tree reaches a rank.
  static const Edge& edge_to(const PlacedTree& placed, Rank rank) {
    const std::optional<int> index = placed.network->edge(placed.tree.parent[at(rank)], rank);
    CHORUS_CHECK(index.has_value(), "trees are made of a network's edges");
    return placed.network->edges()[at(*index)];
  }

  void change_load(const PlacedTree& placed, int times) {
    for (Rank rank = 0; rank < placed.network->world_size(); ++rank) {
      if (rank == placed.tree.root) continue;
      for (const int resource : edge_to(placed, rank).resources) {
        load_[at(resource)] += times * resources_[at(resource)].beta_s_per_byte;
      }
    }
  }

  [[nodiscard]] bool touches_worst(const PlacedTree& placed) const {
    const double nearly = worst() * (1 - 1e-9);
    for (Rank rank = 0; rank < placed.network->world_size(); ++rank) {
      if (rank == placed.tree.root) continue;
      for (const int resource : edge_to(placed, rank).resources) {
        if (load_[at(resource)] >= nearly) return true;
      }
    }
    return false;
  }

  void set_prices(const Network& network, double steepness) {
    if (priced_ == &network && ++since_priced_ < stride_) return;
    priced_ = &network;
    since_priced_ = 0;
    double top = worst();
    for (const Resource& resource : resources_) {
      top = std::max(top, resource.beta_s_per_byte);
    }
    count_work(price_.size(), 20);
    count_work(network.edges().size(), 12);
    for (std::size_t i = 0; i < price_.size(); ++i) {
      const double beta = resources_[i].beta_s_per_byte;
      price_[i] = beta <= 0 ? 0 : beta * std::exp(steepness * ((load_[i] + beta) / top - 1));
    }
    cost_.resize(network.edges().size());
    double sum = 0;
    for (std::size_t i = 0; i < cost_.size(); ++i) {
      cost_[i] = 0;
      for (const int resource : network.edges()[i].resources) cost_[i] += price_[at(resource)];
      sum += cost_[i];
    }
    deep_ = 1e-3 * sum / static_cast<double>(std::max<std::size_t>(cost_.size(), 1));
    entering_.clear();
    for (Rank rank = 0; rank < network.world_size(); ++rank) {
      for (const int index : network.in(rank)) entering_.push_back(cost_[at(index)]);
    }
  }

  /// Grows the tree by the cheapest hop again and again (Prim), depth counting a little; then gives
  /// every rank a cheaper parent where there is one outside what hangs below it.
  void rebuild(PlacedTree& placed, double steepness) {
    const Network& network = *placed.network;
    SpanningTree& tree = placed.tree;
    set_prices(network, steepness);
    const std::size_t n = at(network.world_size());
    tree.parent.assign(n, -1);
    std::vector<char> inside(n, 0);
    std::vector<double> offer(n, kInfinity);
    std::vector<Rank> from(n, -1);
    std::vector<int> depth(n, 0);
    using Offer = std::pair<double, Rank>;
    std::priority_queue<Offer, std::vector<Offer>, std::greater<>> offers;
    offers.push({0, tree.root});
    const std::span<const Rank> destinations = network.destinations();
    std::size_t reached = 0;
    while (!offers.empty()) {
      const Rank newest = offers.top().second;
      offers.pop();
      if (std::exchange(inside[at(newest)], 1) != 0) continue;
      ++reached;
      if (newest != tree.root) {
        tree.parent[at(newest)] = from[at(newest)];
        depth[at(newest)] = depth[at(from[at(newest)])] + 1;
      }
      for (const int index : network.out(newest)) {
        const Rank dst = destinations[at(index)];
        const double cost = cost_[at(index)] + deep_ * (depth[at(newest)] + 1);
        if (inside[at(dst)] != 0 || cost >= offer[at(dst)]) continue;
        offer[at(dst)] = cost;
        from[at(dst)] = newest;
        offers.push({cost, dst});
      }
    }
    CHORUS_CHECK(reached == n, "a connected network has a spanning tree from every rank");
    looks_ += network.edges().size();
    count_work(network.edges().size(), 10);
    count_work(n, 200);
    rehang(network, tree);
    change_load(placed, 1);
  }

  void rehang(const Network& network, SpanningTree& tree) const {
    for (bool again = true; again;) {
      again = false;
      count_work(network.edges().size(), 5);
      std::size_t first = 0;
      for (Rank rank = 0; rank < network.world_size(); ++rank) {
        const std::span<const int> in = network.in(rank);
        const std::span<const double> costs = std::span(entering_).subspan(first, in.size());
        first += in.size();
        if (rank == tree.root) continue;
        double least = cost_[at(*network.edge(tree.parent[at(rank)], rank))] - deep_;
        for (std::size_t i = 0; i < in.size(); ++i) {
          if (costs[i] >= least) continue;
          const Rank above = network.edges()[at(in[i])].src;
          Rank ancestor = above;
          while (ancestor != -1 && ancestor != rank) ancestor = tree.parent[at(ancestor)];
          if (ancestor == rank) continue;
          least = costs[i];
          tree.parent[at(rank)] = above;
          again = true;
        }
      }
    }
  }

  std::vector<PlacedTree> trees_;
  const std::vector<Resource>& resources_;  // the same whichever way round the network is
  std::vector<double> load_;                // seconds per byte of a tree, by resource
  std::vector<double> price_;               // by resource
  std::vector<double> cost_;                // by edge
  std::vector<double> entering_;            // the same, by rank after rank that they enter
  double deep_ = 0;                         // the cost of one hop more from the root
  std::size_t stride_ = 1;                  // trees that go by the same prices
  std::size_t since_priced_ = 0;
  const Network* priced_ = nullptr;  // whose edges cost_ is of
  std::size_t looks_ = 0;
  std::mt19937_64 random_;
};

}  // namespace

std::vector<PlacedTree> placed(const Network& network, const std::vector<SpanningTree>& trees) {
  std::vector<PlacedTree> result;
  for (const SpanningTree& tree : trees) result.push_back({&network, tree});
  return result;
}

double worst_load(const std::vector<PlacedTree>& trees) { return Rerouting(trees, 0).worst(); }

double evenness(const std::vector<PlacedTree>& trees) { return Rerouting(trees, 0).evenness(); }

double time_to_fill(const std::vector<PlacedTree>& trees) { return Rerouting(trees, 0).fill(); }

std::vector<PlacedTree> rerouted(std::vector<PlacedTree> trees, double goal, const Budget& budget) {
  Rerouting rerouting(std::move(trees), budget.seed);
  if (!rerouting.build_missing(budget)) return {};
  double least = rerouting.worst();
  double steepness = 16;
  for (int idle = 0; idle < kReroutingPatience && least > goal * (1 + 1e-9) &&
                     rerouting.looks() < kMostReroutingLooks && !budget.spent();
       ++idle) {
    rerouting.round(steepness, budget);
    if (rerouting.worst() < least * (1 - 1e-9)) {
      least = rerouting.worst();
      idle = -1;
    }
    steepness = steepness >= 128 ? 8 : steepness * 1.5;
  }
  return rerouting.trees();
}

}  // namespace chorus::synth
