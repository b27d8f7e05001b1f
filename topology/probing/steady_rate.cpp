#include "topology/probing/steady_rate.hpp"

#include <algorithm>
#include <vector>

namespace chorus::probing {
namespace {

constexpr double kDiscounted = 0.25;
constexpr std::size_t kFewest = 6;
constexpr double kLeastSpan = 0.4;
constexpr double kAtOnce = 1e-3;
// Many times what a token bucket holds back and then lets through at once.
constexpr std::uint64_t kManyBytes = 2 << 20;

double slope(const ArrivalSample& a, const ArrivalSample& b) {
  const double seconds = b.at_s - a.at_s;
  return seconds > 0 ? static_cast<double>(b.bytes - a.bytes) / seconds : 0;
}

std::span<const ArrivalSample> until(std::span<const ArrivalSample> samples, double to_s) {
  std::size_t last = 0;
  while (last < samples.size() && samples[last].at_s <= to_s) ++last;
  return samples.first(last);
}

std::span<const ArrivalSample> since(std::span<const ArrivalSample> samples, double from_s) {
  std::size_t first = 0;
  while (first < samples.size() && samples[first].at_s < from_s) ++first;
  return samples.subspan(first);
}

// Andrew's monotone chain, upper half; several arrivals at one time count as the last of them.
std::vector<ArrivalSample> upper_hull(std::span<const ArrivalSample> samples) {
  std::vector<ArrivalSample> hull;
  for (const ArrivalSample& sample : samples) {
    if (!hull.empty() && sample.at_s <= hull.back().at_s) hull.pop_back();
    while (hull.size() >= 2 &&
           slope(hull[hull.size() - 2], hull.back()) <= slope(hull.back(), sample)) {
      hull.pop_back();
    }
    hull.push_back(sample);
  }
  return hull;
}

double slope_in_the_middle(std::span<const ArrivalSample> hull) {
  const double middle = (hull.front().at_s + hull.back().at_s) / 2;
  std::size_t next = 1;
  while (next + 1 < hull.size() && hull[next].at_s < middle) ++next;
  return slope(hull[next - 1], hull[next]);
}

double bytes_at(std::span<const ArrivalSample> hull, double at_s) {
  std::size_t next = 1;
  while (next + 1 < hull.size() && hull[next].at_s < at_s) ++next;
  const ArrivalSample& before = hull[next - 1];
  return static_cast<double>(before.bytes) + slope(before, hull[next]) * (at_s - before.at_s);
}

}  // namespace

double steady_rate(std::span<const ArrivalSample> samples, double duration_s,
                   std::uint64_t most_bytes) {
  if (samples.size() < 2) return 0;
  const double begin = samples.front().at_s;
  const double whole = samples.back().at_s - begin;
  if (whole < kLeastSpan * duration_s && samples.back().bytes < most_bytes) {
    return static_cast<double>(samples.back().bytes) / duration_s;
  }
  auto window = until(samples, begin + duration_s);
  // Kept from its core for so long that little is left: the whole must do.
  if (window.size() < kFewest ||
      window.back().at_s - begin < kLeastSpan * std::min(duration_s, whole)) {
    window = samples;
  }
  const double end = window.back().at_s;
  const double from = begin + kDiscounted * (end - begin);
  const auto settled = since(window, from);
  if (settled.back().bytes - settled.front().bytes >= kManyBytes) {
    const std::vector<ArrivalSample> hull = upper_hull(settled);
    if (hull.size() > 1) return slope_in_the_middle(hull);
  }
  // What was on its way at the end counts in part.
  double over = end;
  if (window.size() < samples.size()) {
    over = begin + duration_s;
    window = until(samples, samples[window.size()].at_s + kAtOnce);
  }
  const std::vector<ArrivalSample> hull = upper_hull(window);
  if (hull.size() < 2) return 0;
  const double after = begin + kDiscounted * (over - begin);
  return (bytes_at(hull, over) - bytes_at(hull, after)) / (over - after);
}

}  // namespace chorus::probing
