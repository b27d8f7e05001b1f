// Rows of a timeline in which nothing overlaps.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace chorus {

/// Hands out lanes to bars that come in order of their begin, lowest free lane first.
class LaneStack {
 public:
  int place(double begin_s, double end_s) {
    for (std::size_t lane = 0; lane < free_from_s_.size(); ++lane) {
      if (free_from_s_[lane] > begin_s) continue;
      free_from_s_[lane] = end_s;
      return static_cast<int>(lane);
    }
    free_from_s_.push_back(end_s);
    return static_cast<int>(free_from_s_.size()) - 1;
  }
  [[nodiscard]] int lanes() const { return std::max(1, static_cast<int>(free_from_s_.size())); }

 private:
  std::vector<double> free_from_s_;
};

}  // namespace chorus
