#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/index.hpp"

namespace chorus {

/// The integers below `size` in sets that are joined step by step (union-find). A set is known by
/// its least member.
class DisjointSets {
 public:
  explicit DisjointSets(std::size_t size) : parent_(size) {
    std::iota(parent_.begin(), parent_.end(), 0);
  }

  int find(int member) {
    while (parent_[at(member)] != member) {
      member = parent_[at(member)] = parent_[at(parent_[at(member)])];
    }
    return member;
  }
  void join(int a, int b) {
    a = find(a);
    b = find(b);
    parent_[at(std::max(a, b))] = std::min(a, b);
  }
  /// By member: its set.
  [[nodiscard]] std::vector<int> sets() {
    std::vector<int> result(parent_.size());
    for (std::size_t i = 0; i < result.size(); ++i) result[i] = find(static_cast<int>(i));
    return result;
  }

 private:
  std::vector<int> parent_;
};

}  // namespace chorus
