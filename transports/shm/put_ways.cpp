#include "transports/shm/put_ways.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/clock.hpp"
#include "base/copy.hpp"

namespace chorus {
namespace {

/// What the probe copies was just written; what its reader has in its cache already the kernel
/// copies in half the time, and the sender's core is free. Times as long as by slots.
constexpr double kStillKernel = 1.2;
/// Stores past the caches take what the memory carries from others: they are to be clearly faster.
constexpr double kClearlyFaster = 0.85;

}  // namespace

PutWays::PutWays(const MessageCopiesBySize& expected) : overlap_(expected.overlap) {
  for (const MessageCopies& copies : expected.of) {
    Size size{.expected = copies};
    size.staged_s.fill(copies.stage_s);
    size.streamed_s.fill(copies.stream_s);
    for (const bool in_a_row : {false, true}) {
      const bool overlap = in_a_row && overlap_;
      const double slots_s =
          std::min(together_s(copies.stage_s, copies.fetch_s, overlap),
                   together_s(copies.stream_s, copies.fetch_streamed_s, overlap));
      size.by_kernel[in_a_row] = copies.kernel_s < (in_a_row ? 1 : kStillKernel) * slots_s;
      any_by_kernel_ = any_by_kernel_ || size.by_kernel[in_a_row];
      if (size.by_kernel[in_a_row]) size.best[in_a_row] = PutWay::kernel;
    }
    choose(size);
    sizes_.push_back(size);
  }
}

PutWays::Size* PutWays::size_of(std::size_t bytes) {
  const auto k = static_cast<std::size_t>(std::bit_width(bytes - 1));
  return k < sizes_.size() && std::isfinite(sizes_[k].expected.stage_s) ? &sizes_[k] : nullptr;
}

PutWay PutWays::next(std::size_t bytes, bool in_a_row) {
  if (bytes < kTimed && !any_by_kernel_) return PutWay::stage;
  Size* const size = size_of(bytes);
  if (size == nullptr) return PutWay::stage;
  const PutWay best = size->best[in_a_row];
  if (bytes < kTimed) return best == PutWay::kernel ? best : PutWay::stage;
  if (!std::isfinite(size->expected.stream_s)) return best;
  size->in_trial = size->trial_left > 0 || --size->until_trial == 0;
  if (!size->in_trial) return best;
  if (size->trial_left == 0) {
    size->until_trial = size->interval;
    size->interval = std::min(2 * size->interval, kSeldom);
    size->trial_left = kTrial;
    size->streams_next = best == PutWay::kernel ? !size->streams_next : best == PutWay::stage;
  }
  --size->trial_left;
  return size->streams_next ? PutWay::stream : PutWay::stage;
}

void PutWays::copy(std::byte* to, std::span<const std::byte> src, PutWay way) {
  Size* const size = src.size() >= kTimed ? size_of(src.size()) : nullptr;
  const bool is_timed = size != nullptr && (size->in_trial || ++size->copies % kTimedOf == 0);
  const std::int64_t begin_ns = is_timed ? steady_ns() : 0;
  if (way == PutWay::stream) {
    stream_bytes(to, src.data(), src.size());
    end_streams();
  } else {
    copy_bytes(to, src.data(), src.size());
  }
  if (is_timed) took(way, src.size(), 1e-9 * static_cast<double>(steady_ns() - begin_ns));
}

void PutWays::took(PutWay way, std::size_t bytes, double seconds) {
  Size* const size = size_of(bytes);
  if (size == nullptr || way == PutWay::kernel) return;
  seconds *= static_cast<double>(std::bit_ceil(bytes)) / static_cast<double>(bytes);
  if (way == PutWay::stage) {
    size->staged_s[size->staged++ % kTrial] = seconds;
  } else {
    size->streamed_s[size->streamed++ % kTrial] = seconds;
  }
  if (size->trial_left > 0) return;
  const auto before = size->best;
  choose(*size);
  if (size->best != before) size->interval = size->until_trial = kOften;
}

// The source costs either way the same, and stores past the caches do not mind where the peer is:
// how much longer it takes to stage than to stream is how far away it is, and what has been staged
// it fetches over the same distance, or from memory.
void PutWays::choose(Size& size) const {
  const MessageCopies& expected = size.expected;
  const double stage_s = *std::ranges::min_element(size.staged_s);
  const double stream_s = *std::ranges::min_element(size.streamed_s);
  double fetch_s = expected.fetch_s;
  if (std::isfinite(stream_s)) {
    const double farther = (stage_s / stream_s) / (expected.stage_s / expected.stream_s);
    fetch_s = std::min(farther * fetch_s, std::max(fetch_s, expected.fetch_streamed_s));
  }
  for (const bool in_a_row : {false, true}) {
    const bool overlap = in_a_row && overlap_;
    const double staged_s = together_s(stage_s, fetch_s, overlap);
    const double streamed_s = together_s(stream_s, expected.fetch_streamed_s, overlap);
    // What is hardly faster is not changed to, so that ways that are as fast do not take turns.
    const PutWay now = size.best[in_a_row];
    const double least_gain = now == PutWay::stream ? 1 : kClearlyFaster;
    PutWay best = streamed_s < least_gain * staged_s ? PutWay::stream : PutWay::stage;
    const double slots_s = std::min(staged_s, streamed_s);
    const double kernel_s = expected.kernel_s / (in_a_row ? 1 : kStillKernel);
    const double least_kernel_gain = now == PutWay::kernel ? 1 : kClearlyFaster;
    if (size.by_kernel[in_a_row] && kernel_s < least_kernel_gain * slots_s) best = PutWay::kernel;
    size.best[in_a_row] = best;
  }
}

}  // namespace chorus
