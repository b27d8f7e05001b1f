#include "synth/composing/repeated_trees.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <utility>

#include "base/index.hpp"
#include "synth/packing.hpp"
#include "synth/packing/flowing.hpp"

namespace chorus::synth {
namespace {

constexpr int kRepeatedPatience = 4;                // rounds without progress
constexpr double kMostLooks = 2e9;                  // at edges, of all rounds together
constexpr std::size_t kMostRepeatedHops = 800'000;  // of cell 0's chunks
constexpr int kMostTreeCells = 2048;       // cells; beyond, looking for trees takes minutes
constexpr double kSmallestTree = 1 << 12;  // bytes of one tree's data
// Trees so few that what one of them loads is worth knowing while it grows, and how often.
constexpr std::size_t kFewTrees = 8, kLooksWhileGrowing = 32;
constexpr double kMostOver = 60;  // exponent of a price: costs are floats
constexpr double kDeep =
    1e-3;  // of the mean cost of an edge: what one hop more from the root costs
constexpr float kUnreachable = std::numeric_limits<float>::infinity();

/// A hop of a tree: over an image of a folded edge.
struct TreeHop {
  Rank src = 0;
  Rank dst = 0;
  int edge = 0;
};
using Tree = std::vector<TreeHop>;

class RepeatedPacker {
 public:
  RepeatedPacker(const Network& network, int trees_per_rank, bool as_it_grows, std::uint64_t seed)
      : network_(network),
        cells_(network.cells()),
        n_(at(network_.world_size())),
        trees_(at(cells_.size()) * at(trees_per_rank)),
        at_once_(as_it_grows && trees_.size() <= kFewTrees
                     ? std::max<std::size_t>(n_ / kLooksWhileGrowing, 1)
                     : n_),
        load_(network_.resources().size(), 0),
        price_(load_.size(), 0),
        cost_(network_.edges().size(), 0),
        random_(seed) {
    for (std::size_t i = 0; i < trees_.size(); ++i) {
      roots_.push_back(static_cast<Rank>(i / at(trees_per_rank)));
    }
    // Cells as they are seen from each other: edges leave cell 0 alone.
    plus_.resize(at(cells_.count()) * at(cells_.count()));
    for (int by = 0; by < cells_.count(); ++by) {
      for (int cell = 0; cell < cells_.count(); ++cell) {
        plus_[at(by) * at(cells_.count()) + at(cell)] = cells_.plus(cell, by);
      }
    }
  }

  bool build(const Budget& budget) {
    for (std::size_t i = 0; i < trees_.size(); ++i) {
      if (budget.spent() || !rebuild(i, 8)) return false;
    }
    return true;
  }

  void improve(const Budget& budget) {
    const double looks = static_cast<double>(trees_.size()) *
                         static_cast<double>(network_.edges().size()) *
                         static_cast<double>(cells_.count());
    int rounds = static_cast<int>(std::clamp(kMostLooks / looks, 1.0, 40.0));
    double least = worst();
    double steepness = 16;
    for (int idle = 0; idle < kRepeatedPatience && rounds > 0 && !budget.spent();
         ++idle, --rounds) {
      round(steepness);
      if (worst() < least * (1 - 1e-9)) {
        least = worst();
        idle = -1;
      }
      steepness = steepness >= 128 ? 8 : steepness * 1.5;
    }
  }

  [[nodiscard]] double worst() const {
    return load_.empty() ? 0 : *std::max_element(load_.begin(), load_.end());
  }
  [[nodiscard]] const std::vector<Tree>& trees() const { return trees_; }

 private:
  void round(double steepness) {
    for (std::size_t i = 0; i < trees_.size(); ++i) {
      const double before = worst();
      Tree old = trees_[i];
      change_load(old, -1);
      (void)rebuild(i, steepness);
      if (worst() <= before * (1 + 1e-12)) continue;
      change_load(trees_[i], -1);
      trees_[i] = std::move(old);
      change_load(trees_[i], 1);
    }
  }

  void change_load(std::span<const TreeHop> tree, int times) {
    std::vector<int> hops(network_.edges().size(), 0);
    for (const TreeHop& hop : tree) ++hops[at(hop.edge)];
    for (std::size_t edge = 0; edge < hops.size(); ++edge) {
      if (hops[edge] == 0) continue;
      for (const int resource : network_.edges()[edge].resources) {
        load_[at(resource)] +=
            times * hops[edge] * network_.resources()[at(resource)].beta_s_per_byte;
      }
    }
  }

  void set_costs(double steepness) {
    double top = worst();
    for (const Resource& resource : network_.resources()) {
      top = std::max(top, resource.beta_s_per_byte);
    }
    for (std::size_t i = 0; i < price_.size(); ++i) {
      const double beta = network_.resources()[i].beta_s_per_byte;
      const double over = std::min(steepness * ((load_[i] + beta) / top - 1), kMostOver);
      price_[i] = beta <= 0 ? 0 : beta / top * std::exp(over);
    }
    double sum = 0;
    for (std::size_t edge = 0; edge < cost_.size(); ++edge) {
      double cost = 0;
      for (const int resource : network_.edges()[edge].resources) cost += price_[at(resource)];
      cost_[edge] = static_cast<float>(cost);
      sum += cost;
    }
    deep_ = static_cast<float>(kDeep * sum / static_cast<double>(cost_.size()));
  }

  /// Prim's algorithm, depth counting a little, and which of equals is taken by chance. False if
  /// ranks are left out.
  bool rebuild(std::size_t index, double steepness) {
    set_costs(steepness);
    Tree& tree = trees_[index];
    tree.clear();
    std::vector<char> inside(n_, 0);
    std::vector<float> offer(n_, kUnreachable), chance(n_);
    std::vector<TreeHop> over(n_);
    std::vector<int> depth(n_, 0);
    for (float& one : chance) one = 1 + 1e-3F * static_cast<float>(random_() % 1024) / 1024;
    Rank newest = roots_[index];
    std::size_t counted = 0;  // hops that the prices know
    for (std::size_t size = 1; size < n_; ++size) {
      if (tree.size() - counted >= at_once_) {
        change_load(std::span(tree).subspan(counted), 1);
        counted = tree.size();
        set_costs(steepness);
        std::ranges::fill(offer, kUnreachable);
        for (std::size_t rank = 0; rank < n_; ++rank) {
          if (inside[rank] == 0) continue;
          offer_from(static_cast<Rank>(rank), inside, chance, depth, offer, over);
        }
      }
      inside[at(newest)] = 1;
      offer_from(newest, inside, chance, depth, offer, over);
      newest = -1;
      for (std::size_t rank = 0; rank < n_; ++rank) {
        if (inside[rank] != 0 || offer[rank] == kUnreachable) continue;
        if (newest < 0 || offer[rank] < offer[at(newest)]) newest = static_cast<Rank>(rank);
      }
      if (newest < 0) {
        change_load(std::span(tree).first(counted), -1);
        return false;
      }
      depth[at(newest)] = depth[at(over[at(newest)].src)] + 1;
      tree.push_back(over[at(newest)]);
    }
    change_load(std::span(tree).subspan(counted), 1);
    return true;
  }

  void offer_from(Rank src, const std::vector<char>& inside, const std::vector<float>& chance,
                  const std::vector<int>& depth, std::vector<float>& offer,
                  std::vector<TreeHop>& over) const {
    const int size = cells_.size();
    const int* moved = &plus_[at(src / size) * at(cells_.count())];
    const float deep = deep_ * static_cast<float>(depth[at(src)] + 1);
    for (const int index : network_.out(src % size)) {
      const Edge& edge = network_.edges()[at(index)];
      const Rank dst = moved[edge.dst / size] * size + edge.dst % size;
      if (inside[at(dst)] != 0) continue;
      const float cost = cost_[at(index)] * chance[at(dst)] + deep;
      if (cost >= offer[at(dst)]) continue;
      offer[at(dst)] = cost;
      over[at(dst)] = {src, dst, index};
    }
  }

  const Network& network_;
  const Cells& cells_;
  std::size_t n_;
  std::vector<Tree> trees_;
  std::size_t at_once_;        // hops of a tree, before prices follow it
  std::vector<Rank> roots_;    // by tree
  std::vector<double> load_;   // seconds per byte of a tree, by resource
  std::vector<double> price_;  // by resource
  std::vector<float> cost_;    // by edge
  float deep_ = 0;             // the cost of one hop more
  std::vector<int> plus_;      // [by · cells + cell]
  std::mt19937_64 random_;
};

TreePacking spanning(const RepeatedTrees& repeated, int world_size) {
  TreePacking packing{repeated.trees_per_rank, {}, 0, 0, 0};
  for (const std::vector<Hop>& hops : repeated.trees) {
    const auto root = static_cast<Rank>(packing.trees.size() / at(repeated.trees_per_rank));
    SpanningTree& tree = packing.trees.emplace_back();
    tree = {root, std::vector<Rank>(at(world_size), -1)};
    for (const Hop& hop : hops) tree.parent[at(hop.dst)] = hop.src;
  }
  return packing;
}

/// So many trees from each rank, or pieces of them, are more than can be ordered, or too small.
bool too_many(const Network& network, double size_bytes, int per_rank) {
  const int n = network.world_size();
  const std::size_t hops = at(n - 1) * at(network.cells().size()) * at(per_rank);
  return hops > kMostRepeatedHops || size_bytes / n / per_rank < kSmallestTree;
}

/// Seconds per byte that a rank contributes.
double load_of(const RepeatedTrees& trees) { return trees.load_s_per_byte / trees.trees_per_rank; }

/// Least loaded first. None where latency counts more than bytes, or cells are too many.
std::vector<RepeatedTrees> good_trees(const Network& network, double size_bytes,
                                      const Budget& budget) {
  const double block = size_bytes / network.world_size();
  double least_alpha = std::numeric_limits<double>::infinity(), beta = 0;
  for (const Edge& edge : network.edges()) {
    least_alpha = std::min(least_alpha, edge.alpha_s);
    beta = std::max(beta, edge.beta_s_per_byte);
  }
  std::vector<RepeatedTrees> good;
  if (network.cells().count() > kMostTreeCells || block * beta < least_alpha / 8) return good;
  for (const int trees : {1, 2, 4, 8}) {
    if (trees > 1 && too_many(network, size_bytes, trees)) break;
    std::optional<RepeatedTrees> found = pack_repeated_trees(network, trees, budget);
    if (!found) break;
    const bool better = good.empty() || load_of(good.front()) / load_of(*found) > 1.01;
    if (better) good.insert(good.begin(), *std::move(found));
  }
  // Shorter ways, for where latency counts, too; of more trees prices do not follow any as it
  // grows.
  if (at(network.cells().size()) > kFewTrees) return good;
  if (auto short_ways = pack_repeated_trees(network, 1, budget, false)) {
    good.push_back(*std::move(short_ways));
  }
  return good;
}

}  // namespace

std::optional<RepeatedTrees> pack_repeated_trees(const Network& network, int trees_per_rank,
                                                 const Budget& budget, bool as_it_grows) {
  RepeatedPacker packer(network, trees_per_rank, as_it_grows, budget.seed);
  if (!packer.build(budget)) return std::nullopt;
  packer.improve(budget);
  RepeatedTrees result{trees_per_rank, {}, packer.worst()};
  for (const Tree& tree : packer.trees()) {
    std::vector<Hop>& hops = result.trees.emplace_back();
    for (const TreeHop& hop : tree) hops.push_back({hop.src, hop.dst, 0});
  }
  return result;
}

std::vector<Schedule> repeated_trees(const Network& network, double size_bytes,
                                     const Budget& budget) {
  const int n = network.world_size();
  std::vector<Schedule> schedules;
  double least_s = std::numeric_limits<double>::infinity();
  for (const RepeatedTrees& some : good_trees(network, size_bytes, budget)) {
    if (load_of(some) * size_bytes / n > least_s) continue;
    const TreePacking packing = spanning(some, n);
    for (int pieces = 1; pieces <= 64; pieces *= 4) {
      if (budget.spent() && !schedules.empty()) return schedules;
      const int per_rank = some.trees_per_rank * pieces;
      if (pieces > 1 && too_many(network, size_bytes, per_rank)) break;
      MulticastRouting multicast{{CollectiveKind::all_gather, 0}, n * per_rank, {}, pieces};
      for (std::size_t tree = 0; tree < some.trees.size(); ++tree) {
        for (int piece = 0; piece < pieces; ++piece) {
          const auto chunk = static_cast<ChunkId>(tree) * pieces + piece;
          for (const Hop& hop : some.trees[tree])
            multicast.hops.push_back({hop.src, hop.dst, chunk});
        }
      }
      schedules.push_back(in_order("trees", network, multicast, size_bytes / n / per_rank));
      // Better forwards, as what is there goes first; the other, turned round, for reduce-scatter.
      const TreeFlow flow{multicast.collective, nullptr, &packing, pieces};
      if (auto flowing = flowing_order("trees", network, flow, {}, size_bytes, budget)) {
        least_s = std::min(least_s, flowing->simulation.seconds);
        schedules.push_back(std::move(flowing->schedule));
      }
    }
  }
  return schedules;
}

std::vector<Schedule> repeated_all_reduces(const Network& network, double size_bytes,
                                           const Budget& budget) {
  std::vector<Schedule> schedules;
  double least_s = std::numeric_limits<double>::infinity();
  for (const RepeatedTrees& some : good_trees(network, size_bytes, budget)) {
    if (2 * load_of(some) * size_bytes / network.world_size() > least_s) continue;
    const TreePacking packing = spanning(some, network.world_size());
    for (int pieces = 4; pieces <= 64; pieces *= 4) {  // fewer leave the trees empty
      if (too_many(network, size_bytes, 2 * some.trees_per_rank * pieces)) break;
      const TreeFlow flow{{CollectiveKind::all_reduce, 0}, &packing, &packing, pieces};
      auto flowing = flowing_order("trees", network, flow, {}, size_bytes, budget);
      if (!flowing) return schedules;
      least_s = std::min(least_s, flowing->simulation.seconds);
      schedules.push_back(std::move(flowing->schedule));
    }
  }
  return schedules;
}

}  // namespace chorus::synth
