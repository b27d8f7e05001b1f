// DirectExecution: which way ordinary buffers reach the others.
#include <algorithm>
#include <bit>
#include <chrono>
#include <limits>
#include <utility>

#include "model/schedule/contract.hpp"
#include "runtime/executors/direct_execution.hpp"

namespace chorus {
namespace {

std::pair<std::uint32_t, int> alike(const Routine& routine, const Work& work) {
  return {routine.hash, std::bit_width(work.count * size_of(work.type))};
}

/// By the clock of the host, which all of its processes read alike.
std::int64_t now_ns() {
  using namespace std::chrono;
  return duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
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

// Predicted alike on all ranks, which know the same rates; tuned by the lowest of those that read
// what others have. Each decides for its own buffers, so that no harm is done where they differ.
void DirectExecution::choose_way() {
  tuner_ = nullptr;
  is_timed_ = false;
  begun_ns_ = 0;
  const CopyTimes predicted = predicted_times(*direct_, work_, *count_);
  by_kernel_ = predicted.kernel_pays();
  const auto reads = [](const RankLoad& load) {
    return std::ranges::any_of(load.fetched, [](double chunks) { return chunks > 0; });
  };
  const auto first = std::ranges::find_if(direct_->loads, reads);
  if (first == direct_->loads.end() || !CopyTuner::is_open(predicted)) return;
  tuning_rank_ = static_cast<Rank>(first - direct_->loads.begin());
  if (direct_->readers.empty() && tuning_rank_ != shared_window_->rank()) return;
  const auto key = alike(*routine_, work_);
  tuner_ = &count_->tuners.try_emplace(key, predicted).first->second;
  advice_key_ = std::uint64_t{key.first} << 8 | static_cast<std::uint64_t>(key.second);
}

void DirectExecution::begin_tuning() {
  is_timed_ = false;
  begun_ns_ = 0;
  if (changes_input()) return;  // which is staged
  if (tuning_rank_ == shared_window_->rank()) {
    is_timed_ = tuner_->measures();
    shared_window_->advise(advice_key_, {.by_kernel = tuner_->by_kernel(), .timed = is_timed_});
  } else if (const auto advice = shared_window_->advice_of(tuning_rank_, advice_key_)) {
    is_timed_ = advice->timed;
    tuner_->follow(advice->by_kernel);
  }
  by_kernel_ = tuner_->by_kernel();
  all_tell_begin_ = true;
  if (is_timed_) begun_ns_ = now_ns();
}

void DirectExecution::note_begun(const Offer& offer) {
  if (offer.input_kind == Reference::kNone) return;
  all_tell_begin_ = all_tell_begin_ && offer.buffers.begun_ns > 0;
  begun_ns_ = std::max(begun_ns_, offer.buffers.begun_ns);
}

/// Whether all that this rank read came the way that it asked for.
bool DirectExecution::went_as_asked() const {
  const std::uint16_t wanted = by_kernel_ ? Reference::kPrivate : Reference::kStaged;
  if (is_fast_) return !by_kernel_;
  return std::ranges::all_of(direct_->partners, [&](Rank peer) {
    const Offered& offered = offered_[static_cast<std::size_t>(peer)];
    return offered.input.kind == Reference::kNone ||
           (offered.input.kind == wanted && !offered.restages);
  });
}

// From when the last of those that take part has begun: what ranks wait for each other because they
// have computed for longer is no part of what a way costs.
void DirectExecution::end_tuning() {
  if (tuning_rank_ != shared_window_->rank() || changes_input()) return;
  std::int64_t took_ns = 0;
  if (is_timed_ && all_tell_begin_ && !restages_ && went_as_asked()) took_ns = now_ns() - begun_ns_;
  tuner_->done(static_cast<double>(std::max<std::int64_t>(took_ns, 0)) * 1e-9);
}

}  // namespace chorus
