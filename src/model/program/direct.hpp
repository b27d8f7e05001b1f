// The direct form of a Schedule: for ranks that reach each other's buffers.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "chorus/schedule.hpp"

namespace chorus {

/// Where a run of chunks begins in the input or output of some rank, in chunks (contract.hpp).
struct Place {
  Rank rank = 0;
  int index = 0;

  bool operator==(const Place&) const = default;
};

/// Folds chunks [chunk, chunk + count) from the inputs of `sources`, from left to right, and stores
/// the result in the outputs of all `destinations`.
struct Move {
  ChunkId chunk = 0;
  int count = 1;
  std::vector<Place> sources;
  std::vector<Place> destinations;

  bool operator==(const Move&) const = default;
};

/// What is left of a Schedule where every rank reaches the input and the output of every other:
/// each chunk is folded once by the rank that the Schedule has finish it, straight from the inputs
/// of all who contribute into the outputs of all who get it from there. There are no messages;
/// ranks only tell each other that their buffers are ready and that they have done their moves.
struct DirectProgram {
  std::string name;
  Collective collective;
  int world_size = 0;
  Rank rank = 0;
  int num_chunks = 0;
  std::vector<Move> moves;
  /// Some other rank reads chunks of this rank's input that are overwritten meanwhile if input and
  /// output are one: then it must be given a copy.
  bool copy_in_place = false;

  bool operator==(const DirectProgram&) const = default;
};

/// One DirectProgram per rank, index = rank; nothing if some rank of `schedule` passes on what it
/// did not finish (partial sums, chunks of others): such a schedule is made for messages. The
/// schedule must be correct. Sources are in the order of ranks.
[[nodiscard]] std::optional<std::vector<DirectProgram>> direct(const Schedule& schedule);

/// The first way in which the programs of all ranks break the collective's contract, as a sentence:
/// a place written never or twice, a contribution that is missing, doubled or of another chunk.
[[nodiscard]] std::optional<std::string> first_fault(std::span<const DirectProgram> programs);

}  // namespace chorus
