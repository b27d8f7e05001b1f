// From the schedules that are best at some sizes to the entries of a plan, which covers all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "chorus/plan.hpp"

namespace chorus::synth {

/// When schedules end.
struct EntryTimes {
  /// A winner at sizes[s]; infinite where it was not timed there.
  std::function<double(const Schedule& winner, std::size_t s)> known;
  /// Of any schedule at any size, in bytes: where two take equally long needs no exact time. Takes
  /// long.
  std::function<double(const Schedule&, double size_bytes)> estimate;
};

/// `winners`: by size, ascending as `sizes`; neighbours may be the same object. Each serves up to
/// the size at which the next one becomes faster, the first from 0, the last without an end.
/// Between two sizes its time is on the line through the times at both.
[[nodiscard]] std::vector<PlanEntry> plan_entries(const std::vector<std::uint64_t>& sizes,
                                                  const std::vector<const Schedule*>& winners,
                                                  const EntryTimes& times);

}  // namespace chorus::synth
