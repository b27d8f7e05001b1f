// Trees: binomial, and two binary trees in which no rank is an inner node twice.
#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "collectives/families.hpp"

namespace chorus {

Steps binomial_broadcast(int n) {
  Steps steps;
  int step = 0;
  // The longest hops first: with ranks numbered host by host, few of them cross hosts.
  for (int distance = 1 << ceil_log2(n) >> 1; distance > 0; distance /= 2, ++step) {
    for (Rank rank = 0; rank + distance < n; rank += 2 * distance) {
      send(steps, step, rank, rank + distance, 0);
    }
  }
  return steps;
}

Steps binomial_scatter(int n) {
  Steps steps;
  int step = 0;
  for (int distance = 1 << ceil_log2(n) >> 1; distance > 0; distance /= 2, ++step) {
    for (Rank rank = 0; rank + distance < n; rank += 2 * distance) {
      send(steps, step, rank, rank + distance, rank + distance,
           std::min(distance, n - rank - distance));
    }
  }
  return steps;
}

Schedule make_binomial_tree(const AlgorithmInput& input) {
  const int n = input.world_size;
  const auto finished = [&](int num_chunks, const Steps& steps) {
    return finish("binomial_tree", input, num_chunks, steps);
  };
  switch (input.kind) {
    case CollectiveKind::broadcast:
      return finished(1, binomial_broadcast(n));
    case CollectiveKind::reduce:
      return finished(1, reversed(binomial_broadcast(n)));
    case CollectiveKind::scatter:
      return finished(n, binomial_scatter(n));
    case CollectiveKind::gather:
      return finished(n, reversed(binomial_scatter(n), Action::copy));
    default:  // all_reduce, barrier
      return finished(1, there_and_back(binomial_broadcast(n)));
  }
}

namespace {

constexpr int kNumTrees = 2;
constexpr int kNobody = -1;

/// Two binary trees over ranks [first, first + size): a rank with children in one is a leaf in the
/// other (Sanders, Speck & Träff 2009), so that together they use every rank's bandwidth once.
class TwinTrees {
 public:
  TwinTrees(Rank first, int size) : first_(first), size_(size) {
    for (auto& parents : parents_) parents.assign(first + size, kNobody);
    if (size > 0) attach(0, size, kNobody);
  }

  /// size > 0.
  [[nodiscard]] Rank root(int tree) const { return rank_at(tree, floor_power_of_two(size_)); }
  /// Parent of each rank, kNobody for roots and ranks outside.
  [[nodiscard]] const std::vector<Rank>& parents(int tree) const { return parents_[tree]; }

 private:
  /// Makes a subtree below position `above` of the `count` positions that follow `before`.
  /// Positions count from 1 in an in-order walk; odd ones are leaves.
  void attach(int before, int count, int above) {
    const int position = before + floor_power_of_two(count);
    for (int tree = 0; tree < kNumTrees && above != kNobody; ++tree) {
      parents_[tree][rank_at(tree, position)] = rank_at(tree, above);
    }
    const int left = position - before - 1;
    const int right = count - left - 1;
    if (left > 0) attach(before, left, position);
    if (right > 0) attach(position, right, position);
  }

  /// The second tree is the first one mirrored or, where that would keep odd positions odd,
  /// shifted by one.
  [[nodiscard]] Rank rank_at(int tree, int position) const {
    if (tree == 0) return first_ + position - 1;
    return first_ + (size_ % 2 == 0 ? size_ - position : position % size_);
  }

  Rank first_;
  int size_;
  std::array<std::vector<Rank>, kNumTrees> parents_;
};

/// When each tree's edges carry its first chunk, such that no rank ever sends twice or receives
/// twice in one step if each tree begins a new chunk every other step.
class TwinTimes {
 public:
  explicit TwinTimes(std::array<std::vector<Rank>, kNumTrees> parents)
      : parents_(std::move(parents)) {
    const std::size_t n = parents_[0].size();
    for (int tree = 0; tree < kNumTrees; ++tree) {
      parity_[tree].assign(n, kNobody);
      times_[tree].assign(n, kNobody);
    }
    for (int tree = 0; tree < kNumTrees; ++tree) {
      for (Rank rank = 0; rank < static_cast<Rank>(n); ++rank) {
        if (parents_[tree][rank] != kNobody && parity_[tree][rank] == kNobody)
          color(tree, rank, tree);
      }
    }
    for (int tree = 0; tree < kNumTrees; ++tree) {
      for (Rank rank = 0; rank < static_cast<Rank>(n); ++rank) {
        depth_ = std::max(depth_, time(tree, rank) + 1);
      }
    }
  }

  /// Step in which `rank` hears from its parent, kNobody for roots.
  int time(int tree, Rank rank) {
    const Rank parent = parents_[tree][rank];
    if (parent == kNobody) return kNobody;
    int& known = times_[tree][rank];
    if (known == kNobody) {
      const int earliest = time(tree, parent) + 1;
      known = earliest + ((earliest + parity_[tree][rank]) & 1);
    }
    return known;
  }

  [[nodiscard]] int depth() const { return depth_; }

 private:
  /// Gives the edge into `rank` a parity, and the edges that share its sender or its receiver the
  /// other one. At most two edges share either, so they form paths and even cycles.
  void color(int tree, Rank rank, int parity) {
    parity_[tree][rank] = parity;
    const Rank sender = parents_[tree][rank];
    for (int other = 0; other < kNumTrees; ++other) {
      for (Rank r = 0; r < static_cast<Rank>(parents_[other].size()); ++r) {
        const bool shared =
            parents_[other][r] == sender || (r == rank && parents_[other][r] != kNobody);
        if (shared && parity_[other][r] == kNobody) color(other, r, 1 - parity);
      }
    }
  }

  std::array<std::vector<Rank>, kNumTrees> parents_;
  std::array<std::vector<int>, kNumTrees> parity_;
  std::array<std::vector<int>, kNumTrees> times_;
  int depth_ = 0;
};

}  // namespace

Schedule make_double_binary_tree(const AlgorithmInput& input) {
  const int n = input.world_size;
  const bool rooted = input.kind != CollectiveKind::all_reduce;
  const TwinTrees trees(rooted ? 1 : 0, rooted ? n - 1 : n);
  std::array<std::vector<Rank>, kNumTrees> parents{trees.parents(0), trees.parents(1)};
  for (int tree = 0; tree < kNumTrees && rooted && n > 1; ++tree) {
    parents[tree][trees.root(tree)] = 0;
  }
  TwinTimes times(parents);
  // As many rounds as the pipeline is deep in steps: two thirds of its slots are then filled.
  const int depth = times.depth();
  const int rounds = std::max(1, depth);

  Steps up;
  Steps down;
  for (int tree = 0; tree < kNumTrees; ++tree) {
    for (int round = 0; round < rounds; ++round) {
      const ChunkId chunk = kNumTrees * round + tree;
      for (Rank rank = 0; rank < n; ++rank) {
        const Rank parent = parents[tree][rank];
        if (parent == kNobody) continue;
        const int time = times.time(tree, rank);
        send(up, 2 * round + depth - 1 - time, rank, parent, chunk, 1, Action::reduce);
        send(down, 2 * round + time, parent, rank, chunk);
      }
    }
  }
  const int num_chunks = kNumTrees * rounds;
  if (input.kind == CollectiveKind::broadcast) {
    return finish("double_binary_tree", input, num_chunks, down);
  }
  if (input.kind == CollectiveKind::all_reduce) {
    // A chunk goes down as soon as it is complete, while later ones still go up.
    up.resize(2 * (rounds - 1 + depth));
    for (std::size_t step = 0; step < down.size(); ++step) {
      Step& both = up[step + depth];
      both.insert(both.end(), down[step].begin(), down[step].end());
    }
  }
  return finish("double_binary_tree", input, num_chunks, up);
}

}  // namespace chorus
