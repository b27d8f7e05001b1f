#include "runtime/executors/copy_tuner.hpp"

#include <algorithm>
#include <utility>

namespace chorus {
namespace {

// No figures of a machine: how much a trial may cost, and when one is believed.
constexpr double kOutOfTheQuestion = 8;  ///< times as long as the other way
constexpr double kShareOfTrials = 0.01;  ///< of the time of all calls
constexpr double kFaster = 0.92;         ///< of the time: less of a gain may be chance
constexpr double kUnusual = 1.5;         ///< times as long or as short as before
constexpr int kUnusualLooks = 2;         ///< in sequence
constexpr int kCallsPerLook = 16;
// Others follow with their next call, and then the lines lie where this way leaves them.
constexpr int kUncountedCalls = 2;
// Where the others have not done what is asked of them by then, they cannot, or do something else.
constexpr int kMostCalls = 20;
constexpr int kTrialCalls = kUncountedCalls + CopyTuner::kCounted;
constexpr std::uint64_t kCallsToConfirm = 8;  ///< after a trial that found the other way faster

}  // namespace

bool CopyTuner::is_open(const CopyTimes& predicted) {
  return predicted.kernel_s < kOutOfTheQuestion * predicted.staged_s &&
         predicted.staged_s < kOutOfTheQuestion * predicted.kernel_s;
}

CopyTuner::CopyTuner(const CopyTimes& predicted)
    : by_kernel_(predicted.kernel_pays()),
      ratio_(by_kernel_ ? predicted.staged_s / predicted.kernel_s
                        : predicted.kernel_s / predicted.staged_s),
      usual_s_(by_kernel_ ? predicted.kernel_s : predicted.staged_s) {
  set_interval();
  since_trial_ = interval_ * 3 / 4;  // where the prediction does not hold, the first comes at once
}

void CopyTuner::set_interval() {
  if (was_faster_) {
    interval_ = kCallsToConfirm;
    return;
  }
  // One that is only a little slower costs little, but each trial has uncounted calls.
  constexpr double kLeast = 1.25;
  const double lost = kTrialCalls * (std::clamp(ratio_, kLeast, kOutOfTheQuestion) - 1);
  const double calls = lost / kShareOfTrials;
  // What has changed is looked at sooner, and not more often than that.
  interval_ = static_cast<std::uint64_t>(unusual_ >= kUnusualLooks ? calls / 4 : calls);
}

void CopyTuner::enter(Phase phase) {
  phase_ = phase;
  in_phase_ = counted_ = 0;
}

void CopyTuner::count(Times& times, double seconds) {
  if (seconds > 0) times[static_cast<std::size_t>(counted_++)] = seconds;
}

// One call of some may have been disturbed. The least of them would not do: in a row of broadcasts
// the root may be ahead of its readers in one call and wait for them in the next.
double CopyTuner::typical(const Times& times) {
  double sum = 0, most = 0;
  for (const double s : times) {
    sum += s;
    most = std::max(most, s);
  }
  return (sum - most) / (kCounted - 1);
}

void CopyTuner::done(double seconds) {
  ++in_phase_;
  ++since_trial_;
  switch (phase_) {
    case Phase::steady:
      if (seconds > 0) look(seconds);
      if (since_trial_ >= interval_) {
        enter(Phase::baseline);
      } else if (seconds > 0) {
        in_phase_ = 0;
      }
      break;
    case Phase::baseline:
      count(baseline_, seconds);
      if (counted_ == kCounted) {
        enter(Phase::trial);
      } else if (in_phase_ == kMostCalls) {
        give_up();
      }
      break;
    case Phase::trial:
      if (in_phase_ > kUncountedCalls) count(trial_, seconds);
      if (counted_ == kCounted) {
        judge();
      } else if (in_phase_ == kMostCalls) {
        give_up();
      }
      break;
  }
  measures_ = phase_ == Phase::baseline ||
              (phase_ == Phase::steady && in_phase_ >= kCallsPerLook - 1) ||
              (phase_ == Phase::trial && in_phase_ >= kUncountedCalls);
}

void CopyTuner::look(double seconds) {
  const bool is_usual = seconds < usual_s_ * kUnusual && usual_s_ < seconds * kUnusual;
  unusual_ = is_usual ? 0 : unusual_ + 1;
  set_interval();
}

void CopyTuner::judge() {
  double this_s = typical(baseline_);
  double other_s = typical(trial_);
  const bool faster = other_s < kFaster * this_s;
  if (faster && was_faster_) {
    by_kernel_ = !by_kernel_;
    std::swap(this_s, other_s);
    was_faster_ = false;
  } else {
    was_faster_ = faster;
  }
  ratio_ = other_s / this_s;
  usual_s_ = this_s;
  rest();
}

// As if the other way were far slower.
void CopyTuner::give_up() {
  was_faster_ = false;
  ratio_ = kOutOfTheQuestion;
  rest();
}

void CopyTuner::rest() {
  unusual_ = 0;
  since_trial_ = 0;
  set_interval();
  enter(Phase::steady);
}

}  // namespace chorus
