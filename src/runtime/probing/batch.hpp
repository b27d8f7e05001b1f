// What the hosts that probe are asked, and for how long their flows have to last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/blob.hpp"
#include "topology/probing/host_tree.hpp"

namespace chorus {

/// One experiment. Of a scout nothing is inferred but how long those of its hosts have to last.
struct ProbeQuestion {
  enum class Kind : std::uint32_t { round_trip, flows, scout };
  static constexpr std::uint32_t kShortestMs = 40, kLongestMs = 120;

  Kind kind = Kind::flows;
  std::vector<probing::Flow> flows;
  std::uint32_t ms = kShortestMs;  ///< that flows last
  std::uint32_t network = 0;       ///< that they take, counted from 1; 0: as links see fit
};

/// What hosts do next: questions in order, each followed by an exchange of answers.
using ProbeBatch = std::vector<ProbeQuestion>;

void write(BlobWriter& blob, const ProbeBatch& batch);
/// Throws BootstrapError if it is not what rank 0 of this version writes.
[[nodiscard]] ProbeBatch read_batch(std::span<const std::byte> bytes, std::uint32_t hosts,
                                    std::uint32_t networks);

/// How long flows that run at the same time have to last, by what is known of the network.
///
/// Token buckets and queues let some 128 KB through at once, a few per cent of what a bottleneck
/// should see. So that each flow meets one that does, slow ones get the time for it, within limits.
[[nodiscard]] std::uint32_t duration_ms(std::span<const probing::Flow> flows,
                                        const probing::HostTree& known);

}  // namespace chorus
