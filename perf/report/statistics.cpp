#include "perf/report/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/check.hpp"
#include "chorus/error.hpp"

namespace chorus::perf {

double percentile(std::vector<double> values, double share) {
  CHORUS_CHECK(!values.empty() && share > 0 && share <= 1, "a percentile of something");
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(values.size())));
  return values[std::clamp<std::size_t>(rank, 1, values.size()) - 1];
}

double median(std::vector<double> values) {
  CHORUS_CHECK(!values.empty(), "a median of something");
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double geometric_mean(std::span<const double> values) {
  CHORUS_CHECK(!values.empty(), "a mean of something");
  double logs = 0;
  for (const double value : values) logs += std::log(value);
  return std::exp(logs / static_cast<double>(values.size()));
}

std::vector<double> slowest(std::span<const std::vector<std::int64_t>> rows) {
  std::vector<double> result;
  for (const auto& row : rows) {
    if (row.empty()) continue;
    if (result.empty()) result.assign(row.size(), 0);
    if (row.size() != result.size()) throw Error("ranks ran different numbers of iterations");
    for (std::size_t i = 0; i < row.size(); ++i) {
      result[i] = std::max(result[i], static_cast<double>(row[i]));
    }
  }
  return result;
}

}  // namespace chorus::perf
