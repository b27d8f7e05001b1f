#include "synth/packing/spanning.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "base/index.hpp"
#include "base/work.hpp"
#include "synth/shuffle.hpp"

namespace chorus::synth {
namespace {

constexpr double kUnreached = std::numeric_limits<double>::infinity();
constexpr int kSpanningPatience = 10;  // rounds without progress

/// Two ranks with an edge either way.
struct Pair {
  Rank a = 0;
  Rank b = 0;
  std::vector<int> resources;  // of both edges
};

/// A tree as the pairs it is made of.
using PairTree = std::vector<int>;

class Spanning {
 public:
  Spanning(const Network& network, std::uint64_t seed)
      : network_(network), n_(at(network.world_size())), random_(seed) {
    for (std::size_t index = 0; index < network.edges().size(); ++index) {
      const Edge& there = network.edges()[index];
      const std::optional<int> back = network.edge(there.dst, there.src);
      if (there.src > there.dst || !back) continue;
      Pair pair{there.src, there.dst, there.resources};
      const std::vector<int>& more = network.edges()[at(*back)].resources;
      pair.resources.insert(pair.resources.end(), more.begin(), more.end());
      pairs_.push_back(std::move(pair));
    }
    pairs_of_.resize(n_);
    for (std::size_t pair = 0; pair < pairs_.size(); ++pair) {
      pairs_of_[at(pairs_[pair].a)].push_back(static_cast<int>(pair));
      pairs_of_[at(pairs_[pair].b)].push_back(static_cast<int>(pair));
    }
    load_.assign(network.resources().size(), 0);
  }

  bool build(int count, const Budget& budget) {
    for (int i = 0; i < count; ++i) {
      if (budget.spent()) return false;
      trees_.emplace_back();
      if (!rebuild(trees_.back(), 8)) return false;
    }
    return true;
  }

  void round(double steepness, const Budget& budget) {
    std::vector<std::size_t> order(trees_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    shuffle(order, random_);
    for (const std::size_t index : order) {
      if (budget.spent()) return;
      const double before = worst();
      const PairTree old = trees_[index];
      if (!touches(old, before * (1 - 1e-9))) continue;
      change_load(old, -1);
      (void)rebuild(trees_[index], steepness);
      if (worst() <= before * (1 + 1e-12)) continue;
      change_load(trees_[index], -1);
      trees_[index] = old;
      change_load(old, 1);
    }
  }

  [[nodiscard]] double worst() const { return *std::max_element(load_.begin(), load_.end()); }
  [[nodiscard]] bool limited() const { return !load_.empty(); }

  [[nodiscard]] std::vector<SpanningTree> rooted() const {
    std::vector<SpanningTree> result;
    for (const PairTree& tree : trees_) result.push_back(at_its_centre(tree));
    return result;
  }

 private:
  void change_load(const PairTree& tree, int times) {
    for (const int pair : tree) {
      for (const int resource : pairs_[at(pair)].resources) {
        load_[at(resource)] += times * network_.resources()[at(resource)].beta_s_per_byte;
      }
    }
  }

  [[nodiscard]] bool touches(const PairTree& tree, double load) const {
    return std::any_of(tree.begin(), tree.end(), [&](int pair) {
      const std::vector<int>& resources = pairs_[at(pair)].resources;
      return std::any_of(resources.begin(), resources.end(),
                         [&](int resource) { return load_[at(resource)] >= load; });
    });
  }

  void set_costs(double steepness) {
    double top = limited() ? worst() : 0;
    for (const Resource& resource : network_.resources()) {
      top = std::max(top, resource.beta_s_per_byte);
    }
    std::vector<double> price(load_.size(), 0);
    for (std::size_t i = 0; i < price.size(); ++i) {
      const double beta = network_.resources()[i].beta_s_per_byte;
      if (beta > 0) price[i] = beta * std::exp(steepness * ((load_[i] + beta) / top - 1));
    }
    cost_.assign(pairs_.size(), 0);
    double sum = 0;
    for (std::size_t pair = 0; pair < pairs_.size(); ++pair) {
      for (const int resource : pairs_[pair].resources) cost_[pair] += price[at(resource)];
      sum += cost_[pair];
    }
    deep_ = 1e-3 * sum / static_cast<double>(std::max<std::size_t>(pairs_.size(), 1));
  }

  /// Prim's algorithm from a random rank, depth counting a little. False if ranks are left out.
  bool rebuild(PairTree& tree, double steepness) {
    set_costs(steepness);
    count_work(load_.size(), 20);
    count_work(pairs_.size(), 25);
    count_work(n_ * n_, 3);
    tree.clear();
    std::vector<char> inside(n_, 0);
    std::vector<double> offer(n_, kUnreached);
    std::vector<int> over(n_, -1), depth(n_, 0);
    Rank newest = static_cast<Rank>(random_() % n_);
    for (std::size_t size = 1;; ++size) {
      inside[at(newest)] = 1;
      if (size == n_) break;
      for (const int index : pairs_of_[at(newest)]) {
        const Rank other = beyond(index, newest);
        const double cost = cost_[at(index)] + deep_ * (depth[at(newest)] + 1);
        if (inside[at(other)] != 0 || cost >= offer[at(other)]) continue;
        offer[at(other)] = cost;
        over[at(other)] = index;
        depth[at(other)] = depth[at(newest)] + 1;
      }
      newest = -1;
      for (std::size_t rank = 0; rank < n_; ++rank) {
        if (inside[rank] != 0 || offer[rank] == kUnreached) continue;
        if (newest < 0 || offer[rank] < offer[at(newest)]) newest = static_cast<Rank>(rank);
      }
      if (newest < 0) return false;
      tree.push_back(over[at(newest)]);
    }
    change_load(tree, 1);
    return true;
  }

  [[nodiscard]] Rank beyond(int pair, Rank rank) const {
    const Pair& ends = pairs_[at(pair)];
    return ends.a == rank ? ends.b : ends.a;
  }

  /// Rooted where the farthest rank is nearest: leaves are taken off until one or two are left.
  [[nodiscard]] SpanningTree at_its_centre(const PairTree& tree) const {
    std::vector<std::vector<Rank>> next(n_);
    for (const int pair : tree) {
      next[at(pairs_[at(pair)].a)].push_back(pairs_[at(pair)].b);
      next[at(pairs_[at(pair)].b)].push_back(pairs_[at(pair)].a);
    }
    std::vector<std::size_t> degree(n_);
    std::vector<Rank> order;
    for (std::size_t rank = 0; rank < n_; ++rank) {
      degree[rank] = next[rank].size();
      if (degree[rank] <= 1) order.push_back(static_cast<Rank>(rank));
    }
    for (std::size_t i = 0; i < order.size(); ++i) {
      for (const Rank other : next[at(order[i])]) {
        if (--degree[at(other)] == 1) order.push_back(other);
      }
    }
    SpanningTree result{order.back(), std::vector<Rank>(n_, -1)};
    std::vector<Rank> reached = {result.root};
    for (std::size_t i = 0; i < reached.size(); ++i) {
      for (const Rank other : next[at(reached[i])]) {
        if (other == result.parent[at(reached[i])]) continue;
        result.parent[at(other)] = reached[i];
        reached.push_back(other);
      }
    }
    return result;
  }

  const Network& network_;
  std::size_t n_;
  std::vector<Pair> pairs_;
  std::vector<std::vector<int>> pairs_of_;  // by rank
  std::vector<double> load_;                // seconds per byte of one tree, by resource
  std::vector<double> cost_;                // by pair
  double deep_ = 0;                         // the cost of one hop more
  std::vector<PairTree> trees_;
  std::mt19937_64 random_;
};

}  // namespace

std::optional<SpanningPacking> pack_spanning_trees(const Network& network, int trees,
                                                   const Budget& budget) {
  Spanning spanning(network, budget.seed);
  if (!spanning.build(trees, budget)) return std::nullopt;
  if (!spanning.limited()) return SpanningPacking{spanning.rooted(), 0};
  double least = spanning.worst();
  double steepness = 16;
  for (int idle = 0; idle < kSpanningPatience && !budget.spent(); ++idle) {
    spanning.round(steepness, budget);
    if (spanning.worst() < least * (1 - 1e-9)) {
      least = spanning.worst();
      idle = -1;
    }
    steepness = steepness >= 128 ? 8 : steepness * 1.5;
  }
  return SpanningPacking{spanning.rooted(), least / trees};
}

}  // namespace chorus::synth
