// The steps of a schedule as a pipeline of its chunks.
#pragma once

#include "chorus/schedule.hpp"

namespace chorus::synth {

/// The same transfers, chunk by chunk in the same order, in more steps: of chunks that go the same
/// ways at the same steps one sets out after the other, evenly over the whole, whatever share of
/// the chunks goes those ways.
///
/// A strategy that packs trees gives all chunks of a tree the same steps. Ranks work through steps
/// in order, so everything that is one hop deep would come before all that is two deep: the links
/// of the one rest while those of the other are busy (an all-reduce predicted to take 0.85 s took
/// 1.56). Left as it is where no two chunks go the same ways, and where it is symmetric.
[[nodiscard]] Schedule pipelined(const Schedule& schedule);

}  // namespace chorus::synth
