// The few statistics that a table needs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace chorus::perf {

/// The smallest value that at least `share` (0 … 1] of the values do not exceed (nearest rank).
/// `values` may be in any order and not empty.
[[nodiscard]] double percentile(std::vector<double> values, double share);
/// The middle value, or the mean of the two in the middle; of at least one value.
[[nodiscard]] double median(std::vector<double> values);
/// Of at least one positive value.
[[nodiscard]] double geometric_mean(std::span<const double> values);
/// Element by element the greatest over the rows, which are of equal length; rows that are empty
/// do not count. A collective takes as long as its slowest rank.
[[nodiscard]] std::vector<double> slowest(std::span<const std::vector<std::int64_t>> rows);

}  // namespace chorus::perf
