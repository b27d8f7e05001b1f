#include "synth/packing/spanning.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <span>
#include <utility>

#include "base/index.hpp"
#include "base/work.hpp"
#include "synth/shuffle.hpp"

namespace chorus::synth {
namespace {

constexpr double kUnreached = std::numeric_limits<double>::infinity();
// Rounds without progress. Trees without hubs are nearly as good from the first, and take longer.
constexpr int kPatience = 10, kPatienceWithoutHubs = 5;
// Rounds that relieve: later ones change little. Steep prices would send detours round what is only
// half loaded.
constexpr int kMostReliefs = 6;
constexpr double kReliefSteepness = 8;
// Ranks: of more a hop is still taken at kStillCheap times the price at which it was found, for to
// look for a cheaper one again and again takes most of the time.
constexpr std::size_t kMostExact = 160;
constexpr double kStillCheap = 1.05;

/// Two ranks with an edge either way, as seen from one of them.
struct Pair {
  Rank from = 0;
  Rank to = 0;
};

/// Resources that the same pairs cross, and which are loaded alike, as both lanes of a cable.
struct Bundle {
  double beta_s_per_byte = 0;      ///< of the slowest
  std::vector<double> betas = {};  ///< of all
};

/// A tree as the pairs it is made of.
using PairTree = std::vector<int>;

class Spanning {
 public:
  Spanning(const Network& network, TreeShape shape, std::uint64_t seed)
      : network_(network), shape_(shape), n_(at(network.world_size())), random_(seed) {
    std::vector<Pair> pairs;
    for (const Edge& there : network.edges()) {
      if (there.src < there.dst && network.edge(there.dst, there.src)) {
        pairs.push_back({there.src, there.dst});
      }
    }
    lay_out(pairs, bundles_crossed_by(pairs));
    load_.assign(bundles_.size(), 0);
    price_.assign(load_.size(), 0);
    crossings_.assign(load_.size(), 0);
    for (const int index : crossed_) ++crossings_[at(index)];
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
    for (const std::size_t index : shuffled()) {
      if (budget.spent()) return;
      const double before = worst();
      if (!touches(trees_[index], before * (1 - 1e-9))) continue;
      replace(index, steepness, [&] { return worst() <= before * (1 + 1e-12); });
    }
  }

  /// Takes load from what is nearly as loaded as the most loaded resource, which none may become:
  /// trees that fill everything hinder each other (by 20 to 30 % of the time, beside 3 to 5 %).
  /// False if nothing changed.
  bool relieve(double steepness, const Budget& budget) {
    bool changed = false;
    const double most = worst();
    double least = congestion(most);
    for (const std::size_t index : shuffled()) {
      if (budget.spent()) return false;
      changed |= replace(index, steepness, [&] {
        if (worst() > most * (1 + 1e-12)) return false;
        const double now = congestion(most);
        if (now >= least * (1 - 1e-9)) return false;
        least = now;
        return true;
      });
    }
    return changed;
  }

  [[nodiscard]] double worst() const { return *std::max_element(load_.begin(), load_.end()); }
  [[nodiscard]] bool limited() const { return !load_.empty(); }

  [[nodiscard]] std::vector<SpanningTree> rooted() const {
    std::vector<SpanningTree> result;
    for (const PairTree& tree : trees_) result.push_back(at_its_centre(tree));
    return result;
  }

 private:
  /// Finds the resources that the same pairs cross: to look at one of them is enough. By pair, the
  /// bundles that its edges cross.
  [[nodiscard]] std::vector<std::vector<int>> bundles_crossed_by(const std::vector<Pair>& pairs) {
    std::vector<std::vector<int>> crossing(network_.resources().size());
    for (std::size_t index = 0; index < pairs.size(); ++index) {
      const auto [a, b] = pairs[index];
      for (const int edge : {*network_.edge(a, b), *network_.edge(b, a)}) {
        for (const int resource : network_.edges()[at(edge)].resources) {
          crossing[at(resource)].push_back(static_cast<int>(index));
        }
      }
    }
    std::map<std::vector<int>, Bundle> by_pairs;
    for (std::size_t index = 0; index < crossing.size(); ++index) {
      const double beta = network_.resources()[index].beta_s_per_byte;
      if (beta <= 0 || crossing[index].empty()) continue;
      Bundle& bundle = by_pairs[std::move(crossing[index])];
      bundle.beta_s_per_byte = std::max(bundle.beta_s_per_byte, beta);
      bundle.betas.push_back(beta);
    }
    std::vector<std::vector<int>> crossed(pairs.size());
    for (const auto& [crossing_pairs, bundle] : by_pairs) {
      for (const int pair : crossing_pairs) {
        crossed[at(pair)].push_back(static_cast<int>(bundles_.size()));
      }
      bundles_.push_back(bundle);
    }
    return crossed;
  }

  /// Every pair in the rows of both its ranks, with what it crosses: a tree that grows looks at row
  /// after row, and would wait for memory if half of every row were elsewhere.
  void lay_out(const std::vector<Pair>& pairs, const std::vector<std::vector<int>>& crossed) {
    std::vector<std::vector<std::size_t>> of_rank(n_);
    for (std::size_t pair = 0; pair < pairs.size(); ++pair) {
      of_rank[at(pairs[pair].from)].push_back(pair);
      of_rank[at(pairs[pair].to)].push_back(pair);
    }
    for (std::size_t rank = 0; rank < n_; ++rank) {
      for (const std::size_t pair : of_rank[rank]) {
        const auto [a, b] = pairs[pair];
        pairs_.push_back({static_cast<Rank>(rank), at(a) == rank ? b : a});
        crossed_.insert(crossed_.end(), crossed[pair].begin(), crossed[pair].end());
        crossed_from_.push_back(crossed_.size());
      }
      rows_from_.push_back(static_cast<int>(pairs_.size()));
    }
  }

  /// Of both edges of a pair.
  [[nodiscard]] std::span<const int> bundles_of(int pair) const {
    return std::span(crossed_).subspan(crossed_from_[at(pair)],
                                       crossed_from_[at(pair) + 1] - crossed_from_[at(pair)]);
  }

  [[nodiscard]] std::vector<std::size_t> shuffled() {
    std::vector<std::size_t> order(trees_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    shuffle(order, random_);
    return order;
  }

  /// Makes a tree anew; takes the old one back unless it is `better`.
  template <class Better>
  bool replace(std::size_t index, double steepness, Better better) {
    const PairTree old = trees_[index];
    change_load(old, -1);
    (void)rebuild(trees_[index], steepness);
    if (better()) return true;
    change_load(trees_[index], -1);
    trees_[index] = old;
    change_load(old, 1);
    return false;
  }

  /// How many resources are loaded `most`, those that are less so counting little.
  [[nodiscard]] double congestion(double most) const {
    constexpr double kSteep = 20;
    double sum = 0;
    for (std::size_t i = 0; i < load_.size(); ++i) {
      for (const double beta : bundles_[i].betas) {
        const double load = load_[i] * beta / bundles_[i].beta_s_per_byte;
        sum += std::exp(kSteep * (load / most - 1));
      }
    }
    count_work(load_.size(), 10);
    return sum;
  }

  void change_load(const PairTree& tree, int times) {
    for (const int pair : tree) change_load(pair, times);
  }

  void change_load(int pair, int times) {
    for (const int index : bundles_of(pair)) {
      load_[at(index)] += times * bundles_[at(index)].beta_s_per_byte;
    }
  }

  [[nodiscard]] bool touches(const PairTree& tree, double load) const {
    return std::any_of(tree.begin(), tree.end(), [&](int pair) {
      const std::span<const int> bundles = bundles_of(pair);
      return std::any_of(bundles.begin(), bundles.end(),
                         [&](int index) { return load_[at(index)] >= load; });
    });
  }

  /// What a further tree pays for each resource, and for each hop that it is deep.
  void set_prices(double steepness) {
    steepness_ = steepness;
    top_ = limited() ? worst() : 0;
    for (const Bundle& bundle : bundles_) top_ = std::max(top_, bundle.beta_s_per_byte);
    double sum = 0;  // of the costs of all pairs
    for (std::size_t i = 0; i < price_.size(); ++i) {
      set_price(i);
      sum += price_[i] * crossings_[i];
    }
    deep_ = 1e-3 * sum / static_cast<double>(std::max<std::size_t>(pairs_.size(), 1));
    count_work(price_.size(), 20);
  }

  void set_price(std::size_t index) {
    const Bundle& bundle = bundles_[index];
    const double more = load_[index] / bundle.beta_s_per_byte + 1;  // crossings, one more
    price_[index] = 0;
    for (const double beta : bundle.betas) {
      price_[index] += beta * std::exp(steepness_ * (more * beta / top_ - 1));
    }
  }

  /// Prim's algorithm from a random rank, depth counting a little. False if ranks are left out.
  bool rebuild(PairTree& tree, double steepness) {
    set_prices(steepness);
    tree.clear();
    Growth growth(n_);
    Rank newest = static_cast<Rank>(random_() % n_);
    for (std::size_t size = 1;; ++size) {
      growth.inside[at(newest)] = 1;
      if (size == n_) break;
      for (int index = rows_from_[at(newest)]; index < rows_from_[at(newest) + 1]; ++index) {
        const Rank other = beyond(index, newest);
        if (growth.inside[at(other)] == 0) offer(growth, other, index);
      }
      newest = cheapest(growth);
      if (newest < 0) return false;
      const int chosen = growth.over[at(newest)];
      growth.depth[at(newest)] = growth.depth[at(beyond(chosen, newest))] + 1;
      tree.push_back(chosen);
      change_load(chosen, 1);
      if (shape_ == TreeShape::around_hubs) continue;
      for (const int index : bundles_of(chosen)) set_price(at(index));
    }
    count_work(growth.looks, 3);
    return true;
  }

  /// A tree that grows.
  struct Growth {
    explicit Growth(std::size_t n)
        : inside(n, 0), offers(n, kUnreached), over(n, -1), depth(n, 0) {}

    std::vector<char> inside;
    std::vector<double> offers;  // by rank: the least cost at which it was reached, at the time
    std::vector<int> over;       // by rank: the pair of that offer
    std::vector<int> depth;
    std::size_t looks = 0;  // at prices
  };

  /// What it costs that `rank` joins over `pair`; if that is `most` or more, so much at least.
  [[nodiscard]] double asked(Growth& growth, Rank rank, int pair, double most) const {
    double cost = deep_ * (growth.depth[at(beyond(pair, rank))] + 1);
    growth.looks += 4;  // what every offer takes
    for (const int index : bundles_of(pair)) {
      if (cost >= most) break;
      cost += price_[at(index)];
      ++growth.looks;
    }
    return cost;
  }

  /// Keeps the cheapest way for `rank` to join.
  void offer(Growth& growth, Rank rank, int pair) const {
    const double cost = asked(growth, rank, pair, growth.offers[at(rank)]);
    if (cost >= growth.offers[at(rank)]) return;
    growth.offers[at(rank)] = cost;
    growth.over[at(rank)] = pair;
  }

  /// The rank outside that joins most cheaply; -1 if none can. Prices only rise, so that only the
  /// offer that seems least has to be looked at again.
  [[nodiscard]] Rank cheapest(Growth& growth) const {
    for (;;) {
      Rank best = -1;
      for (std::size_t rank = 0; rank < n_; ++rank) {
        if (growth.inside[rank] != 0 || growth.offers[rank] == kUnreached) continue;
        if (best < 0 || growth.offers[rank] < growth.offers[at(best)]) {
          best = static_cast<Rank>(rank);
        }
      }
      growth.looks += n_ / 2;  // to compare offers takes less
      if (best < 0) return best;
      const double now = asked(growth, best, growth.over[at(best)], kUnreached);
      const double still_cheap = n_ > kMostExact ? kStillCheap : 1 + 1e-9;
      if (now <= still_cheap * growth.offers[at(best)]) return best;
      growth.offers[at(best)] = now;
      for (int index = rows_from_[at(best)]; index < rows_from_[at(best) + 1]; ++index) {
        if (growth.inside[at(beyond(index, best))] != 0) offer(growth, best, index);
      }
    }
  }

  [[nodiscard]] Rank beyond(int pair, Rank rank) const {
    const Pair& ends = pairs_[at(pair)];
    return ends.from == rank ? ends.to : ends.from;
  }

  /// Rooted where the farthest rank is nearest: leaves are taken off until one or two are left.
  [[nodiscard]] SpanningTree at_its_centre(const PairTree& tree) const {
    std::vector<std::vector<Rank>> next(n_);
    for (const int pair : tree) {
      next[at(pairs_[at(pair)].from)].push_back(pairs_[at(pair)].to);
      next[at(pairs_[at(pair)].to)].push_back(pairs_[at(pair)].from);
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
  TreeShape shape_;
  std::size_t n_;
  std::vector<Pair> pairs_;           // row after row
  std::vector<int> rows_from_ = {0};  // by rank: where its row begins
  std::vector<Bundle> bundles_;
  std::vector<int> crossed_;                     // of these, by pair after pair
  std::vector<std::size_t> crossed_from_ = {0};  // by pair: where its own begin
  // By index into bundles_: seconds per byte of one tree, prices, and how many pairs cross it.
  std::vector<double> load_, price_, crossings_;
  double steepness_ = 0, top_ = 0;  // of the prices
  double deep_ = 0;                 // the cost of one hop more
  std::vector<PairTree> trees_;
  std::mt19937_64 random_;
};

}  // namespace

std::optional<SpanningPacking> pack_spanning_trees(const Network& network, int trees,
                                                   TreeShape shape, const Budget& budget) {
  Spanning spanning(network, shape, budget.seed);
  if (!spanning.build(trees, budget)) return std::nullopt;
  if (!spanning.limited()) return SpanningPacking{spanning.rooted(), 0};
  double least = spanning.worst();
  double steepness = 16;
  const bool hubs = shape == TreeShape::around_hubs;
  const int patience = hubs ? kPatience : kPatienceWithoutHubs;
  for (int idle = 0; idle < patience && !budget.spent(); ++idle) {
    spanning.round(steepness, budget);
    if (spanning.worst() < least * (1 - 1e-9)) {
      least = spanning.worst();
      idle = -1;
    }
    steepness = steepness >= 128 ? 8 : steepness * 1.5;
  }
  for (int i = 0; !hubs && i < kMostReliefs; ++i) {
    if (!spanning.relieve(kReliefSteepness, budget)) break;
  }
  return SpanningPacking{spanning.rooted(), least / trees};
}

}  // namespace chorus::synth
