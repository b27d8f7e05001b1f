// DirectExecution: which way ordinary buffers reach the others.
#include <algorithm>
#include <bit>
#include <chrono>
#include <limits>
#include <utility>

#include "model/contract.hpp"
#include "runtime/direct_execution.hpp"

namespace chorus {
namespace {

std::pair<std::uint32_t, int> alike(const Routine& routine, const Work& work) {
  return {routine.hash, std::bit_width(work.count * size_of(work.type))};
}

}  // namespace

// Of ordinary buffers. Nothing is known where it is not measured, and small ones are staged.
CopyTimes DirectExecution::predicted_times(const DirectRoutine& routine, const Work& work,
                                           const DirectCount& count) {
  constexpr CopyTimes kStaged{.staged_s = 0, .kernel_s = std::numeric_limits<double>::infinity()};
  if (count.machine == nullptr || count.kernel_refuses) return kStaged;
  const std::size_t block_bytes = work.count * size_of(work.type);
  if (static_cast<std::size_t>(routine.most_input_blocks) * block_bytes <= kAlwaysStaged) {
    return kStaged;
  }
  return copy_times(*count.machine, routine.loads,
                    static_cast<double>(block_bytes) / routine.chunks_per_block,
                    is_combining(routine.program.collective.kind));
}

DirectExecution::ByKernel DirectExecution::reads_by_kernel(const Routine& routine, const Work& work,
                                                           const DirectCount& count) {
  const bool predicted = predicted_times(*routine.direct, work, count).kernel_pays();
  const auto tuner = count.tuners.find(alike(routine, work));
  const bool now = tuner == count.tuners.end() ? predicted : tuner->second.chosen();
  return {.predicted = predicted, .now = now && !count.kernel_refuses};
}

// Predicted alike on all ranks, which know the same rates; tuned by the lowest of the ranks that
// read each other. Each decides for its own buffers, so that no harm is done where they differ.
void DirectExecution::choose_way() {
  tuner_ = nullptr;
  by_kernel_ = tunes_ = measures_ = false;
  if (direct_->readers.empty()) return;
  const CopyTimes predicted = predicted_times(*direct_, work_, *count_);
  by_kernel_ = predicted.kernel_pays();
  if (!CopyTuner::is_open(predicted)) return;
  tuner_ = &count_->tuners.try_emplace(alike(*routine_, work_), predicted).first->second;
  tuning_rank_ = commons_->rank();
  for (const Move& move : direct_->program.moves) {
    for (const Place& place : move.sources) tuning_rank_ = std::min(tuning_rank_, place.rank);
  }
}

void DirectExecution::begin_tuning() {
  const std::uint16_t wanted = by_kernel_ ? Reference::kPrivate : Reference::kStaged;
  tunes_ = input_.kind == wanted && !changes_input();
  measures_ = tunes_ && tuning_rank_ == commons_->rank() && tuner_->measures();
  if (!measures_) return;
  begun_ = std::chrono::steady_clock::now();
  waited_ = {};
}

void DirectExecution::note_offers_known() {
  waited_ = std::chrono::steady_clock::now() - offered_at_;
}

// Where calls follow each other, waiting for others is part of what a way costs. Where ranks
// compute between them it tells how late the others are. What the kernel refused says nothing of
// either way.
void DirectExecution::end_tuning() {
  if (tuning_rank_ == commons_->rank()) {
    if (restages_) return;
    std::chrono::duration<double> took{};
    if (measures_) {
      took = std::chrono::steady_clock::now() - begun_;
      if (begun_ - count_->tuned_call_ended > took / 2) took -= waited_;
    }
    tuner_->done(took.count());
    if (tuner_->measures()) count_->tuned_call_ended = std::chrono::steady_clock::now();
    return;
  }
  if (is_brief_) return tuner_->follow(false);  // whom it heard had staged
  const Offered& offered = offered_[static_cast<std::size_t>(tuning_rank_)];
  if (offered.input.kind == Reference::kPrivate) tuner_->follow(true);
  if (offered.input.kind == Reference::kStaged && !offered.restages) tuner_->follow(false);
}

}  // namespace chorus
