// What a plan's search has made of one collective: schedules, and how they compete.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "chorus/schedule.hpp"
#include "synth/plan.hpp"

namespace chorus::synth {

inline constexpr double kNever = std::numeric_limits<double>::infinity();
inline constexpr double kMayGain = 1.1;  // times the best: a pipeline of it may still be better

/// A proved schedule and its predicted times at the sizes it was made for; at others it does not
/// compete (never), unless time was too short: what is chosen for a size does not depend on which
/// other sizes are asked for.
struct Pooled {
  Schedule schedule;
  std::string strategy;
  std::vector<Prediction> at_sizes;
  std::vector<char> lost;  ///< by size: so clearly that it has no time there
  bool finished = false;   ///< in the form that the plan has
};
using Pool = std::vector<Pooled>;

/// The fastest at a size of those that are `wanted`; null if there is none.
template <class Wanted>
[[nodiscard]] const Pooled* best_of(const Pool& pool, std::size_t size_index, Wanted wanted) {
  const Pooled* best = nullptr;
  for (const Pooled& entry : pool) {
    if (!wanted(entry) || entry.at_sizes[size_index].seconds == kNever) continue;
    if (best == nullptr ||
        entry.at_sizes[size_index].seconds < best->at_sizes[size_index].seconds) {
      best = &entry;
    }
  }
  return best;
}

/// What the strategies that did not make `winner` take; at least so much, if they lost early, and 0
/// if there are none.
[[nodiscard]] inline double next_best_s(const Pool& pool, const Pooled& winner,
                                        std::size_t size_index) {
  double seconds = kNever;
  for (const Pooled& entry : pool) {
    if (entry.strategy == winner.strategy) continue;
    const double known_s = entry.at_sizes[size_index].seconds;
    const bool lost = entry.lost[size_index] != 0;
    seconds = std::min(
        {seconds, known_s, lost ? kMayGain * winner.at_sizes[size_index].seconds : kNever});
  }
  return seconds == kNever ? 0 : seconds;
}

}  // namespace chorus::synth
