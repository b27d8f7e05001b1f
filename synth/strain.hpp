// What no prediction knows of a schedule.
#pragma once

#include "chorus/schedule.hpp"
#include "synth/network.hpp"

namespace chorus::synth {

/// Of two schedules that are predicted alike the one with less strain is the safer one.
struct Strain {
  /// The most pairs of ranks whose transfers meet on one of the links and port groups that the
  /// schedule keeps busy for longest. Streams that share one share it neither evenly nor without
  /// loss: an all-gather with three streams into one slow host took 1.08 times as long as round a
  /// ring, predicted alike.
  int streams = 0;
  /// The time that all links and port groups are busy, together, for one byte. What is relayed
  /// keeps more of them busy and waits for more: an all-to-all of three hosts, a third of it by way
  /// of another one, took 1.0 to 1.3 times as long as one that is direct, predicted alike.
  double busy_s_per_byte = 0;
};

/// Of `schedule`, whose transfers are edges of `network`, which is not folded.
[[nodiscard]] Strain strain(const Schedule& schedule, const Network& network);

}  // namespace chorus::synth
