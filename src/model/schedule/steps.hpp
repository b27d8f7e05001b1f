// Lists of steps, and ways to make one from another.
//
// Most collectives are made from one "spread": steps that only copy, after which every rank
// that should hold a chunk has received it exactly once. An all_gather is a spread in which chunk c
// begins at rank c, a broadcast one in which all chunks begin at the root. Backwards, with sums in
// place of copies, a spread is the matching reduction (reduce_scatter, reduce); backwards and then
// forwards it is an all_reduce, in which one rank finishes each chunk and the others copy it, so
// that all ranks hold the same bits.
#pragma once

#include <functional>
#include <vector>

#include "chorus/schedule.hpp"

namespace chorus {

using Steps = std::vector<Step>;

/// Adds the transfers of chunks [first, first + count) to step `step`, making it if need be.
void send(Steps& steps, int step, Rank src, Rank dst, ChunkId first, int count = 1,
          Action action = Action::copy);

/// Last step first, destination to source, every transfer with `action`.
[[nodiscard]] Steps reversed(const Steps& steps, Action action = Action::reduce);

/// `first`, then `second`.
[[nodiscard]] Steps joined(Steps first, const Steps& second);

/// The all_reduce of a spread: backwards, then forwards.
[[nodiscard]] Steps there_and_back(const Steps& spread);

/// The same steps between other ranks, about other chunks.
[[nodiscard]] Steps renamed_ranks(Steps steps, const std::function<Rank(Rank)>& rename);
[[nodiscard]] Steps renamed_chunks(Steps steps, const std::function<ChunkId(ChunkId)>& rename);

/// Leaves out what would bring a chunk to a rank that holds it already. Every chunk begins at rank
/// 0. `steps` only copy.
[[nodiscard]] Steps without_repeats(const Steps& steps, int world_size, int num_chunks);

}  // namespace chorus
