#include "runtime/probing/drift.hpp"

#include <algorithm>
#include <limits>

namespace chorus {

std::optional<double> Drift::note(Shape shape, double predicted_s, double measured_s) {
  if (told_ || predicted_s <= 0) return std::nullopt;
  Windows& seen = by_shape_[shape];
  seen.least = std::min(seen.least, measured_s / predicted_s);
  if (++seen.calls < kWindow) return std::nullopt;
  const double ratio = seen.least;
  seen.calls = 0;
  seen.least = std::numeric_limits<double>::infinity();
  const bool ends_together = shape.kind == CollectiveKind::all_reduce;
  double change = ratio;
  bool changed = false;
  if (seen.usual > 0) {
    change = ratio / seen.usual;
    const double tolerance = ends_together ? kTolerance : kLooseTolerance;
    changed = change > tolerance || change * tolerance < 1;
  } else {
    const bool is_faster = ends_together && ratio * kLooseTolerance < 1;
    changed = !fresh_ && (is_faster || ratio > kLooseTolerance);
    // What was predicted is wrong from the start: the next window shall be held against it, too.
    if (!changed) seen.usual = ratio;
  }
  seen.strikes = changed ? seen.strikes + 1 : 0;
  if (seen.strikes < windows_) return std::nullopt;
  told_ = true;
  return change;
}

}  // namespace chorus
