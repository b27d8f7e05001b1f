// What a schedule costs, by the size of the call.
#pragma once

#include <vector>

#include "model/price/cost.hpp"

namespace chorus {

/// Predicted seconds by size: lines from each point to the next, the last one prolonged.
class Price {
 public:
  struct Point {
    double bytes = 0;
    double seconds = 0;
  };

  Price() = default;
  Price(const Cost& line);  // NOLINT(google-explicit-constructor): a line is a price
  /// At least two points, ascending, the first of 0 bytes.
  explicit Price(std::vector<Point> points);

  [[nodiscard]] double seconds(double size_bytes) const {
    return line_at(size_bytes).seconds(size_bytes);
  }
  /// The line on which the price of `size_bytes` lies, and those of sizes up to the next point. Its
  /// alpha may be negative.
  [[nodiscard]] Cost line_at(double size_bytes) const;
  [[nodiscard]] const std::vector<Point>& points() const { return points_; }
  Price& operator+=(const Cost& more);

 private:
  std::vector<Point> points_ = {{0, 0}, {1, 0}};
};

}  // namespace chorus
