#include "model/price/price.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "base/check.hpp"

namespace chorus {

// The second point lies so far away that the slope between the two loses no digits.
Price::Price(const Cost& line) : points_{{0, line.alpha_s}, {0x1p40, line.seconds(0x1p40)}} {}

Price::Price(std::vector<Point> points) : points_(std::move(points)) {
  CHORUS_CHECK(points_.size() >= 2 && points_.front().bytes == 0 &&
                   std::ranges::adjacent_find(points_, std::ranges::greater_equal(),
                                              &Point::bytes) == points_.end(),
               "a price has points that ascend from 0 bytes");
}

Cost Price::line_at(double size_bytes) const {
  auto after = std::ranges::upper_bound(points_, size_bytes, {}, &Point::bytes);
  if (after == points_.end()) --after;
  const Point& low = *std::prev(after);
  const double slope = (after->seconds - low.seconds) / (after->bytes - low.bytes);
  return {.alpha_s = low.seconds - slope * low.bytes, .beta_s_per_byte = slope};
}

Price& Price::operator+=(const Cost& more) {
  for (Point& point : points_) point.seconds += more.seconds(point.bytes);
  return *this;
}

}  // namespace chorus
