// Where every chunk lies at every rank once it is decided which deliveries are stored. For model/
// and formats/ only.
#pragma once

#include <functional>
#include <vector>

#include "chorus/schedule.hpp"
#include "model/program/delivery.hpp"
#include "model/program/program.hpp"

namespace chorus {

/// Scratch memory is numbered rank by rank in the order of chunks, and only for what is really
/// stored there. Keeps a pointer to the schedule.
class Placement {
 public:
  Placement() = default;
  /// `stored(i)`: whether delivery i is kept at its destination.
  Placement(const Schedule& schedule, const std::vector<Delivery>& deliveries,
            const std::function<bool(int)>& stored);

  /// How many chunks `rank` keeps in scratch.
  [[nodiscard]] int scratch_chunks(Rank rank) const;
  /// The place of one chunk, or of the first of a run. One that is read from scratch must be
  /// stored there.
  [[nodiscard]] LocalRange range(Buffer buffer, ChunkId chunk, Rank rank) const;

 private:
  const Schedule* schedule_ = nullptr;
  std::vector<std::vector<ChunkId>> scratch_;  // by rank, ascending
};

}  // namespace chorus
