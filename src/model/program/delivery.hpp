// First half of lower() and of other ways to write programs: what arrives where, from whom, in runs
// of consecutive chunks. For model/ and formats/ only.
#pragma once

#include <utility>
#include <vector>

#include "chorus/schedule.hpp"
#include "model/program/program.hpp"

namespace chorus {

/// One message of a Delivery: who sends it and from where.
struct Sender {
  Rank rank = 0;
  Buffer buffer = Buffer::input;  ///< where the chunks lie at `rank`
  int producer = -1;  ///< the delivery that brought `rank` exactly these chunks, or -1: none did
};

/// Chunks [chunk, chunk + count) arriving at one rank in one step, all in the same way. The ranges
/// of all its messages are equal and consecutive in every buffer at both ends.
struct Delivery {
  int step = 0;
  Rank dst = 0;
  ChunkId chunk = 0;
  int count = 1;
  Action action = Action::copy;
  bool completes = false;      ///< the reduction holds all contributions
  Buffer own = Buffer::input;  ///< reduce: where dst's own value lies
  Buffer destination = Buffer::output;
  std::vector<Sender> senders;  ///< in increasing order of rank
  int next_send_step = -1;      ///< first step in which dst sends all these chunks on; -1: no such
  int readers = 0;              ///< most uses that the value of any of the chunks has at dst
};

struct Deliveries {
  std::vector<Delivery> list;  ///< sorted by step, dst, chunk
  /// Chunks that a sender reads from its output before anything arrived there: they must be copied
  /// there from its input.
  std::vector<std::pair<Rank, ChunkId>> early_copies;
};

/// `schedule` must be correct. No delivery has more than `most` chunks; those that are cut for that
/// end at multiples of it, so that a run keeps its parts from hop to hop.
[[nodiscard]] Deliveries deliveries(const Schedule& schedule, int most);

/// The deliveries to one rank and those that it sends to; of a schedule without symmetry, all.
struct OwnDeliveries {
  Deliveries deliveries;
  int longest = 1;  ///< no message between any two ranks has more chunks; alike on all ranks
};
/// In time and memory that grow with the transfers that `schedule` names. It must be correct.
[[nodiscard]] OwnDeliveries own_deliveries(const Schedule& schedule, Rank rank);

/// Chunks that `rank` starts with and must end with, and that never arrive there: `received` are
/// the deliveries to it. Ascending in its input.
[[nodiscard]] std::vector<ChunkId> own_chunks(const Schedule& schedule,
                                              const std::vector<Delivery>& deliveries,
                                              const std::vector<int>& received, Rank rank);

}  // namespace chorus
