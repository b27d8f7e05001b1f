#include "runtime/probing/drift.hpp"

#include <algorithm>

namespace chorus {
namespace {

bool beyond(double ratio, double tolerance) { return ratio > tolerance || ratio * tolerance < 1; }

}  // namespace

std::optional<double> Drift::note(double predicted_s, double measured_s) {
  if (told_ || predicted_s <= 0) return std::nullopt;
  least_ = std::min(least_, measured_s / predicted_s);
  if (++calls_ < kWindow) return std::nullopt;
  const double ratio = least_;
  calls_ = 0;
  least_ = std::numeric_limits<double>::infinity();
  double change = usual_ > 0 ? ratio / usual_ : 1;
  bool changed = beyond(change, kTolerance);
  if (usual_ == 0) {
    changed = !fresh_ && beyond(ratio, kPredicted);
    change = ratio;
    // What was predicted is wrong from the start: the next window shall be held against it, too.
    if (!changed) usual_ = ratio;
  }
  strikes_ = changed ? strikes_ + 1 : 0;
  if (strikes_ < windows_) return std::nullopt;
  told_ = true;
  return change;
}

}  // namespace chorus
