#include "topology/probing/steady_rate.hpp"

#include <algorithm>
#include <vector>

namespace chorus::probing {
namespace {

constexpr double kDiscounted = 0.25;
constexpr std::size_t kFewest = 6;
constexpr double kLeastSpan = 0.4;

double slope(const ArrivalSample& a, const ArrivalSample& b) {
  const double seconds = b.at_s - a.at_s;
  return seconds > 0 ? static_cast<double>(b.bytes - a.bytes) / seconds : 0;
}

std::span<const ArrivalSample> between(std::span<const ArrivalSample> samples, double from_s,
                                       double to_s) {
  std::size_t first = 0;
  while (first < samples.size() && samples[first].at_s < from_s) ++first;
  std::size_t last = first;
  while (last < samples.size() && samples[last].at_s <= to_s) ++last;
  return samples.subspan(first, last - first);
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

}  // namespace

double steady_rate(std::span<const ArrivalSample> samples, double duration_s) {
  if (samples.size() < 2) return 0;
  const double begin = samples.front().at_s;
  const double whole = samples.back().at_s - begin;
  const double until = std::min(duration_s, whole);
  auto window = between(samples, begin + kDiscounted * until, begin + until);
  if (window.size() < kFewest)
    window = between(samples, begin + kDiscounted * whole, begin + whole);
  // Kept from its core for so long that nothing is left: the whole must do.
  if (window.size() < 2 || window.back().at_s - window.front().at_s < kLeastSpan * until) {
    window = samples;
  }
  const std::vector<ArrivalSample> hull = upper_hull(window);
  if (hull.size() < 2) return 0;
  const double middle = (hull.front().at_s + hull.back().at_s) / 2;
  std::size_t i = 1;
  while (i + 1 < hull.size() && hull[i].at_s < middle) ++i;
  return slope(hull[i - 1], hull[i]);
}

}  // namespace chorus::probing
