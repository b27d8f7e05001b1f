#include "synth/packing/rings.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <utility>

#include "base/index.hpp"
#include "base/work.hpp"

namespace chorus::synth {
namespace {

constexpr double kSteepness = 12;
constexpr int kMostPasses = 30;   // over a ring
constexpr int kShortSegment = 8;  // up to here every length is tried, beyond powers of two

/// Of all rings together. First the hops that do not exist, which no crowding outweighs.
struct Price {
  int missing = 0;
  double rest = 0;

  [[nodiscard]] bool is_below(const Price& other, double tolerance) const {
    if (missing != other.missing) return missing < other.missing;
    return rest < other.rest - tolerance;
  }
};

/// By a resource's load as it is, and as it would be with one hop more or less.
struct PriceOfLoad {
  double now = 0, one_more = 0, one_less = 0;
};

/// From one rank to another.
struct RingHop {
  bool exists = false;
  double farther = 0;                    ///< what it adds to the price for its latency
  std::uint32_t first = 0, crosses = 0;  ///< of the resources in `RingHops`
};

/// All hops, those with one end in common side by side, with the resources that they cross: to look
/// at the hops of a rank in the order of a ring else waits for memory most of the time.
class RingHops {
 public:
  /// `by_dst`: those that have their destination in common, not their source.
  RingHops(const Network& network, bool by_dst) : n_(at(network.world_size())), hops_(n_ * n_) {
    std::vector<int> edges(hops_.size(), -1);
    for (std::size_t i = 0; i < network.edges().size(); ++i) {
      const Edge& edge = network.edges()[i];
      edges[by_dst ? place(edge.dst, edge.src) : place(edge.src, edge.dst)] = static_cast<int>(i);
    }
    for (std::size_t i = 0; i < edges.size(); ++i) {
      if (edges[i] < 0) continue;
      const Edge& edge = network.edges()[at(edges[i])];
      hops_[i] = {true, 1e-3 * edge.alpha_s / (edge.alpha_s + 1e-6),
                  static_cast<std::uint32_t>(resources_.size()),
                  static_cast<std::uint32_t>(edge.resources.size())};
      resources_.insert(resources_.end(), edge.resources.begin(), edge.resources.end());
    }
  }

  [[nodiscard]] const RingHop& hop(Rank shared, Rank other) const {
    return hops_[place(shared, other)];
  }
  [[nodiscard]] std::span<const int> resources(const RingHop& hop) const {
    return std::span(resources_).subspan(hop.first, hop.crosses);
  }

 private:
  [[nodiscard]] std::size_t place(Rank shared, Rank other) const {
    return at(shared) * n_ + at(other);
  }

  std::size_t n_;
  std::vector<RingHop> hops_;
  std::vector<int> resources_;
};

class Rings {
 public:
  Rings(const Network& network, int rings)
      : network_(network),
        n_(network.world_size()),
        by_src_(network, false),
        by_dst_(network, true),
        load_(network.resources().size(), 0),
        prices_(load_.size()),
        times_(load_.size(), 0),
        rings_(at(rings)) {
    for (const Resource& resource : network.resources()) {
      least_scale_ = std::max(least_scale_, resource.beta_s_per_byte * rings);
    }
    sum_up();
  }

  /// False if some hop does not exist or the budget is spent.
  bool find(const Budget& budget) {
    for (std::size_t ring = 0; ring < rings_.size(); ++ring) {
      begin(rings_[ring], static_cast<Rank>(ring % at(n_)));
    }
    for (int pass = 0; pass < kMostPasses; ++pass) {
      bool improved = false;
      for (std::vector<Rank>& ring : rings_) {
        if (budget.spent()) return false;
        const Price before = price_;
        improve(ring);
        improved |= price_.is_below(before, 1e-9 * std::abs(before.rest));
        sum_up();
      }
      if (!improved) break;
    }
    return price_.missing == 0;
  }

  [[nodiscard]] std::vector<SpanningTree> trees() const {
    std::vector<SpanningTree> trees;
    for (Rank root = 0; root < n_; ++root) {
      for (const std::vector<Rank>& ring : rings_) {
        SpanningTree tree{root, std::vector<Rank>(at(n_), -1)};
        for (std::size_t i = 0; i < ring.size(); ++i) {
          const Rank next = ring[(i + 1) % ring.size()];
          if (next != root) tree.parent[at(next)] = ring[i];
        }
        trees.push_back(std::move(tree));
      }
    }
    return trees;
  }

 private:
  [[nodiscard]] double price_of(double load) const {
    return scale_ > 0 ? std::exp(kSteepness * (load / scale_ - 1)) : 0;
  }

  /// A hop that a ring takes, `times` 1, or gives up, -1.
  struct Change {
    Rank src = 0;
    Rank dst = 0;
    int times = 1;
    bool same_dst = false;  ///< as others that are looked at beside it
  };

  /// Measures loads by the largest there is now, at least by that of a ring through the slowest
  /// resource: what all hops share would else outweigh everything else by more than doubles hold.
  /// The sum is made anew, without the rounding of what came and went.
  void sum_up() {
    scale_ = least_scale_;
    for (const double load : load_) scale_ = std::max(scale_, load);
    price_.rest = nearness_;
    for (std::size_t i = 0; i < load_.size(); ++i) {
      set_prices(i);
      price_.rest += prices_[i].now;
    }
  }

  void set_prices(std::size_t index) {
    const double beta = network_.resources()[index].beta_s_per_byte;
    prices_[index] = {price_of(load_[index]), price_of(load_[index] + beta),
                      price_of(load_[index] - beta)};
  }

  struct Found {
    const RingHop& hop;
    std::span<const int> resources;
  };
  [[nodiscard]] Found found(const Change& change) const {
    const RingHops& hops = change.same_dst ? by_dst_ : by_src_;
    const RingHop& hop =
        change.same_dst ? hops.hop(change.dst, change.src) : hops.hop(change.src, change.dst);
    return {hop, hops.resources(hop)};
  }

  /// What the price would be then. What one hop takes and another gives up cancels out, and what
  /// one more or less costs is known: exponentials take ten times as long as all the rest.
  [[nodiscard]] Price price_after(std::span<const Change> changes) {
    Price price = price_;
    changed_.clear();
    for (const Change& change : changes) {
      const auto [hop, resources] = found(change);
      if (!hop.exists) {
        price.missing += change.times;
        continue;
      }
      price.rest += change.times * hop.farther;
      for (const int resource : resources) {
        changed_.push_back(resource);
        times_[at(resource)] += change.times;
      }
    }
    count_work(changed_.size(), 12);
    for (const int resource : changed_) {
      const int times = std::exchange(times_[at(resource)], 0);
      if (times == 0) continue;  // or it was there before
      price.rest += price_then(resource, times) - prices_[at(resource)].now;
    }
    return price;
  }

  [[nodiscard]] double price_then(int resource, int times) const {
    if (times == 1) return prices_[at(resource)].one_more;
    if (times == -1) return prices_[at(resource)].one_less;
    return price_of(load_[at(resource)] +
                    times * network_.resources()[at(resource)].beta_s_per_byte);
  }

  void change(std::span<const Change> changes) {
    for (const Change& one : changes) change(one);
  }
  void change(const Change& change) {
    const auto [hop, resources] = found(change);
    if (!hop.exists) {
      price_.missing += change.times;
      return;
    }
    nearness_ += change.times * hop.farther;
    price_.rest += change.times * hop.farther;
    for (const int resource : resources) {
      load_[at(resource)] += change.times * network_.resources()[at(resource)].beta_s_per_byte;
      price_.rest -= prices_[at(resource)].now;
      set_prices(at(resource));
      price_.rest += prices_[at(resource)].now;
    }
  }

  void begin(std::vector<Rank>& ring, Rank first) {
    ring = {first};
    std::vector<char> inside(at(n_), 0);
    inside[at(first)] = 1;
    while (ring.size() < at(n_)) {
      Rank nearest = -1;
      Price least;
      count_work(at(n_), 40);
      for (int i = 1; i < n_; ++i) {
        const Rank next = (ring.back() + i) % n_;
        if (inside[at(next)] != 0) continue;
        const Change hop{ring.back(), next};
        const Price price = price_after(std::span(&hop, 1));
        if (nearest < 0 || price.is_below(least, 1e-12)) {
          nearest = next;
          least = price;
        }
      }
      change(Change{ring.back(), nearest});
      sum_up();
      inside[at(nearest)] = 1;
      ring.push_back(nearest);
    }
    change(Change{ring.back(), first});
  }

  /// Moves segments of the ring to where they are cheaper.
  void improve(std::vector<Rank>& ring) {
    for (int length = 1; length <= n_ / 2; length += length < kShortSegment ? 1 : length) {
      for (int from = 0; from < n_; ++from) improve(ring, from, length);
    }
  }

  void improve(std::vector<Rank>& ring, int from, int length) {
    // The segment first: then what follows it is one stretch.
    std::rotate(ring.begin(), ring.begin() + from, ring.end());
    const auto there = [&](int i) { return ring[at(i % n_)]; };
    Price least = price_;
    const auto cut = [&](int times) {
      return std::array{Change{there(n_ - 1), there(0), -times},
                        Change{there(length - 1), there(length), -times},
                        Change{there(n_ - 1), there(length), times}};
    };
    const auto insertion = [&](int after) {
      return std::array{Change{there(after), there(after + 1), -1},
                        Change{there(after), there(0), 1, true},
                        Change{there(length - 1), there(after + 1)}};
    };
    change(cut(1));
    int best = -1;
    const double tolerance = 1e-9 * std::abs(least.rest);
    count_work(at(n_ - length), 40);
    for (int after = length; after + 1 < n_; ++after) {
      const Price price = price_after(insertion(after));
      if (!price.is_below(least, best < 0 ? tolerance : 0)) continue;
      least = price;
      best = after;
    }
    if (best < 0) {
      change(cut(-1));
      return;
    }
    change(insertion(best));
    std::rotate(ring.begin(), ring.begin() + length, ring.begin() + best + 1);
  }

  const Network& network_;
  int n_;
  RingHops by_src_, by_dst_;         // the same
  std::vector<double> load_;         // by resource
  std::vector<PriceOfLoad> prices_;  // of these loads
  std::vector<int> times_;           // by resource: by how many hops it would change
  std::vector<int> changed_;         // which
  double least_scale_ = 0, scale_ = 0;
  double nearness_ = 0;  // of all hops: of equals the nearer
  Price price_;
  std::vector<std::vector<Rank>> rings_;
};

}  // namespace

std::vector<SpanningTree> pack_rings(const Network& network, int rings, const Budget& budget) {
  if (network.world_size() < 3) return {};
  Rings found(network, rings);
  if (!found.find(budget)) return {};
  return found.trees();
}

}  // namespace chorus::synth
