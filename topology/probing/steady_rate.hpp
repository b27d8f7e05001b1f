// The rate that a flow settles at.
#pragma once

#include <cstdint>
#include <span>

namespace chorus::probing {

/// When a receiver saw a message, and the bytes that had arrived by then.
struct ArrivalSample {
  double at_s = 0;
  std::uint64_t bytes = 0;
};

/// Bytes per second of a flow whose sender sent for `duration_s`, or until `most_bytes` were sent;
/// 0 if there is too little to say.
///
/// What a token bucket lets through at first does not count: the first quarter is left out, as is
/// what came after `duration_s` (others may have ended by then) where enough remains. A receiver
/// that was kept from its core sees arrivals late, never early, and catches up at once: the points
/// that were seen in time are the upper convex hull of the curve. Of a fast flow the result is the
/// slope of that hull in the middle. A slow one brings few bytes in this time, of which a bucket
/// that filled while the flow began, or took turns with others, may let through a good part at
/// once: there the result is the mean after the first quarter, by the hull of the whole, which adds
/// up over flows that take turns. Where all was seen at once, though it was sent for long, the
/// first segment was lost and the rest waited for it: what came, over the time in which it was
/// sent.
[[nodiscard]] double steady_rate(std::span<const ArrivalSample> samples, double duration_s,
                                 std::uint64_t most_bytes = UINT64_MAX);

}  // namespace chorus::probing
