#include "synth/packing/rerouting.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <utility>

#include "base/check.hpp"

namespace chorus::synth {
namespace {

constexpr int kPatience = 12;  // rounds without progress
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::size_t at(int index) { return static_cast<std::size_t>(index); }

class Rerouting {
 public:
  Rerouting(const Network& network, std::vector<SpanningTree> trees, std::uint64_t seed)
      : network_(network),
        trees_(std::move(trees)),
        load_(network.resources().size(), 0),
        price_(network.resources().size(), 0),
        random_(seed) {
    for (const SpanningTree& tree : trees_) {
      if (!tree.parent.empty()) change_load(tree, 1);
    }
  }

  [[nodiscard]] double worst() const {
    return load_.empty() ? 0 : *std::max_element(load_.begin(), load_.end());
  }
  [[nodiscard]] const std::vector<SpanningTree>& trees() const { return trees_; }

  /// Trees that are not there yet, in an order in which no root is served first.
  bool build_missing(const Effort& effort) {
    for (const std::size_t index : shuffled()) {
      if (!trees_[index].parent.empty()) continue;
      if (effort.spent()) return false;
      rebuild(trees_[index], 8);
    }
    return true;
  }

  void round(double steepness, const Effort& effort) {
    for (const std::size_t index : shuffled()) {
      if (effort.spent()) return;
      SpanningTree& tree = trees_[index];
      if (!touches_worst(tree)) continue;
      const double before = worst();
      const SpanningTree old = tree;
      change_load(tree, -1);
      rebuild(tree, steepness);
      if (worst() <= before * (1 + 1e-12)) continue;
      change_load(tree, -1);
      tree = old;
      change_load(tree, 1);
    }
  }

 private:
  std::vector<std::size_t> shuffled() {
    std::vector<std::size_t> order(trees_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_() % i]);
    return order;
  }

  [[nodiscard]] const Edge& edge(Rank src, Rank dst) const {
    const std::optional<int> index = network_.edge(src, dst);
    CHORUS_CHECK(index.has_value(), "trees are made of a network's edges");
    return network_.edges()[at(*index)];
  }

  void change_load(const SpanningTree& tree, int times) {
    for (Rank rank = 0; rank < network_.world_size(); ++rank) {
      if (rank == tree.root) continue;
      for (const int resource : edge(tree.parent[at(rank)], rank).resources) {
        load_[at(resource)] += times * network_.resources()[at(resource)].beta_s_per_byte;
      }
    }
  }

  [[nodiscard]] bool touches_worst(const SpanningTree& tree) const {
    const double nearly = worst() * (1 - 1e-9);
    for (Rank rank = 0; rank < network_.world_size(); ++rank) {
      if (rank == tree.root) continue;
      for (const int resource : edge(tree.parent[at(rank)], rank).resources) {
        if (load_[at(resource)] >= nearly) return true;
      }
    }
    return false;
  }

  void set_prices(double steepness) {
    double top = worst();
    for (const Resource& resource : network_.resources()) {
      top = std::max(top, resource.beta_s_per_byte);
    }
    for (std::size_t i = 0; i < price_.size(); ++i) {
      const double beta = network_.resources()[i].beta_s_per_byte;
      price_[i] = beta <= 0 ? 0 : beta * std::exp(steepness * ((load_[i] + beta) / top - 1));
    }
    cost_.resize(network_.edges().size());
    double sum = 0;
    for (std::size_t i = 0; i < cost_.size(); ++i) {
      cost_[i] = 0;
      for (const int resource : network_.edges()[i].resources) cost_[i] += price_[at(resource)];
      sum += cost_[i];
    }
    deep_ = 1e-3 * sum / static_cast<double>(std::max<std::size_t>(cost_.size(), 1));
  }

  /// Grows the tree by the cheapest hop again and again (Prim), depth counting a little; then gives
  /// every rank a cheaper parent where there is one outside what hangs below it.
  void rebuild(SpanningTree& tree, double steepness) {
    set_prices(steepness);
    const std::size_t n = at(network_.world_size());
    tree.parent.assign(n, -1);
    std::vector<char> inside(n, 0);
    std::vector<double> offer(n, kInfinity);
    std::vector<Rank> from(n, -1);
    std::vector<int> depth(n, 0);
    Rank newest = tree.root;
    for (std::size_t size = 1;; ++size) {
      inside[at(newest)] = 1;
      if (newest != tree.root) {
        tree.parent[at(newest)] = from[at(newest)];
        depth[at(newest)] = depth[at(from[at(newest)])] + 1;
      }
      if (size == n) break;
      for (const int index : network_.out(newest)) {
        const Rank dst = network_.edges()[at(index)].dst;
        const double cost = cost_[at(index)] + deep_ * (depth[at(newest)] + 1);
        if (inside[at(dst)] == 0 && cost < offer[at(dst)]) {
          offer[at(dst)] = cost;
          from[at(dst)] = newest;
        }
      }
      newest = -1;
      for (std::size_t rank = 0; rank < n; ++rank) {
        if (inside[rank] != 0 || offer[rank] == kInfinity) continue;
        if (newest < 0 || offer[rank] < offer[at(newest)]) newest = static_cast<Rank>(rank);
      }
      CHORUS_CHECK(newest >= 0, "a connected network has a spanning tree from every rank");
    }
    rehang(tree);
    change_load(tree, 1);
  }

  void rehang(SpanningTree& tree) const {
    for (bool again = true; again;) {
      again = false;
      for (Rank rank = 0; rank < network_.world_size(); ++rank) {
        if (rank == tree.root) continue;
        double least = cost_[at(*network_.edge(tree.parent[at(rank)], rank))] - deep_;
        for (const int index : network_.in(rank)) {
          if (cost_[at(index)] >= least) continue;
          const Rank above = network_.edges()[at(index)].src;
          Rank ancestor = above;
          while (ancestor != -1 && ancestor != rank) ancestor = tree.parent[at(ancestor)];
          if (ancestor == rank) continue;
          least = cost_[at(index)];
          tree.parent[at(rank)] = above;
          again = true;
        }
      }
    }
  }

  const Network& network_;
  std::vector<SpanningTree> trees_;
  std::vector<double> load_;   // seconds per byte of a tree, by resource
  std::vector<double> price_;  // by resource
  std::vector<double> cost_;   // by edge
  double deep_ = 0;            // the cost of one hop more from the root
  std::mt19937_64 random_;
};

}  // namespace

double worst_load(const Network& network, const std::vector<SpanningTree>& trees) {
  return Rerouting(network, trees, 0).worst();
}

std::vector<SpanningTree> rerouted(const Network& network, std::vector<SpanningTree> trees,
                                   double goal, const Effort& effort) {
  Rerouting rerouting(network, std::move(trees), effort.seed);
  if (!rerouting.build_missing(effort)) return {};
  std::vector<SpanningTree> best = rerouting.trees();
  double least = rerouting.worst();
  double steepness = 16;
  for (int idle = 0; idle < kPatience && least > goal * (1 + 1e-9) && !effort.spent(); ++idle) {
    rerouting.round(steepness, effort);
    if (rerouting.worst() < least * (1 - 1e-9)) {
      least = rerouting.worst();
      best = rerouting.trees();
      idle = -1;
    }
    steepness = steepness >= 128 ? 8 : steepness * 1.5;
  }
  return best;
}

}  // namespace chorus::synth
