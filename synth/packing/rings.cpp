#include "synth/packing/rings.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/index.hpp"

namespace chorus::synth {
namespace {

constexpr double kSteepness = 12;
constexpr double kNoEdge = 1e9;   // the price of a hop that does not exist
constexpr int kMostPasses = 30;   // over a ring
constexpr int kShortSegment = 8;  // up to here every length is tried, beyond powers of two

class Rings {
 public:
  Rings(const Network& network, int rings)
      : network_(network),
        n_(network.world_size()),
        edge_(at(n_) * at(n_), -1),
        load_(network.resources().size(), 0),
        rings_(at(rings)) {
    for (std::size_t i = 0; i < network.edges().size(); ++i) {
      const Edge& edge = network.edges()[i];
      edge_[at(edge.src) * at(n_) + at(edge.dst)] = static_cast<int>(i);
    }
    for (const Resource& resource : network.resources()) {
      scale_ = std::max(scale_, resource.beta_s_per_byte * rings);
    }
  }

  /// False if some hop does not exist or the effort is spent.
  bool find(const Effort& effort) {
    for (std::size_t ring = 0; ring < rings_.size(); ++ring) {
      begin(rings_[ring], static_cast<Rank>(ring % at(n_)));
    }
    for (int pass = 0; pass < kMostPasses; ++pass) {
      const double before = price_;
      for (std::vector<Rank>& ring : rings_) {
        if (effort.spent()) return false;
        improve(ring);
      }
      if (price_ >= before * (1 - 1e-9)) break;
    }
    return price_ < kNoEdge;
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

  /// What the price of all changes by when a hop is taken (times 1) or given up (-1).
  void change(Rank src, Rank dst, int times) {
    const int index = edge_[at(src) * at(n_) + at(dst)];
    if (index < 0) {
      price_ += times * kNoEdge;
      return;
    }
    const Edge& edge = network_.edges()[at(index)];
    price_ += times * 1e-3 * edge.alpha_s / (edge.alpha_s + 1e-6);  // of equals the nearer
    for (const int resource : edge.resources) {
      double& load = load_[at(resource)];
      price_ -= price_of(load);
      load += times * network_.resources()[at(resource)].beta_s_per_byte;
      price_ += price_of(load);
    }
  }

  void begin(std::vector<Rank>& ring, Rank first) {
    ring = {first};
    std::vector<char> inside(at(n_), 0);
    inside[at(first)] = 1;
    while (ring.size() < at(n_)) {
      Rank nearest = -1;
      double least = 0;
      for (int i = 1; i < n_; ++i) {
        const Rank next = (ring.back() + i) % n_;
        if (inside[at(next)] != 0) continue;
        const double before = price_;
        change(ring.back(), next, 1);
        const double more = price_ - before;
        change(ring.back(), next, -1);
        if (nearest >= 0 && more >= least - 1e-12) continue;
        nearest = next;
        least = more;
      }
      change(ring.back(), nearest, 1);
      inside[at(nearest)] = 1;
      ring.push_back(nearest);
    }
    change(ring.back(), first, 1);
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
    const double before = price_;
    const auto cut = [&](int times) {
      change(there(n_ - 1), there(0), -times);
      change(there(length - 1), there(length), -times);
      change(there(n_ - 1), there(length), times);
    };
    const auto insert = [&](int after, int times) {
      change(there(after), there(after + 1), -times);
      change(there(after), there(0), times);
      change(there(length - 1), there(after + 1), times);
    };
    cut(1);
    int best = -1;
    double least = before - 1e-9 * std::abs(before);
    for (int after = length; after + 1 < n_; ++after) {
      insert(after, 1);
      if (price_ < least) {
        least = price_;
        best = after;
      }
      insert(after, -1);
    }
    if (best < 0) {
      cut(-1);
    } else {
      insert(best, 1);
      std::rotate(ring.begin(), ring.begin() + length, ring.begin() + best + 1);
    }
  }

  const Network& network_;
  int n_;
  std::vector<int> edge_;  // [src · n + dst], -1: none
  std::vector<double> load_;
  double scale_ = 0;
  double price_ = 0;
  std::vector<std::vector<Rank>> rings_;
};

}  // namespace

std::vector<SpanningTree> pack_rings(const Network& network, int rings, const Effort& effort) {
  if (network.world_size() < 3) return {};
  Rings found(network, rings);
  if (!found.find(effort)) return {};
  return found.trees();
}

}  // namespace chorus::synth
