// How much work a plan is worth, and which part of it each collective may take.
#pragma once

#include <algorithm>
#include <set>
#include <utility>

#include "chorus/schedule.hpp"
#include "synth/budget.hpp"

namespace chorus::synth {

/// Work that a plan for so many ranks is worth: what takes about half a minute for up to 64, a
/// minute from 128 to 512.
[[nodiscard]] inline double work_for(int ranks) {
  return 30e9 * std::max(std::clamp(ranks / 64.0, 1.0, 2.0), ranks / 256.0);
}

/// Collectives are searched for one after the other, and most need little. So each may take all
/// that is left but for what is kept for those after it.
class Shares {
 public:
  /// `easy`: those that have a mirror image among the others, which is there already, and those
  /// that what is asked first serves nearly as well as anything can.
  Shares(const Budget& budget, std::set<CollectiveKind> kinds, std::set<CollectiveKind> easy)
      : whole_(budget), left_(std::move(kinds)), easy_(std::move(easy)) {}

  /// Of the next one.
  [[nodiscard]] Budget of(CollectiveKind kind) {
    left_.erase(kind);
    double later = 0;
    for (const CollectiveKind other : left_) later += kept_for(other);
    const double left = whole_.left();
    if (left <= 0) return whole_;
    return whole_.part(std::max(left - later, std::min(left, kept_for(kind))) / left);
  }

 private:
  [[nodiscard]] double kept_for(CollectiveKind kind) const {
    using enum CollectiveKind;
    if (easy_.contains(kind)) return 0.02;
    // Training calls these most, and to search for them takes longest; an all_reduce is composed of
    // the others besides.
    if (kind == all_reduce) return 0.22;
    if (kind == all_gather || kind == reduce_scatter) return 0.2;
    return 0.05;
  }

  const Budget whole_;
  std::set<CollectiveKind> left_;
  std::set<CollectiveKind> easy_;
};

}  // namespace chorus::synth
