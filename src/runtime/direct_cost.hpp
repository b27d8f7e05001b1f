// What the direct form of a schedule costs ranks that share memory.
#pragma once

#include <span>

#include "model/cost.hpp"
#include "model/direct.hpp"

namespace chorus {

/// Ranks up to which each may look at the offers of all others: beyond, that takes longer than the
/// logarithmic number of messages of a tree.
inline constexpr int kMostFlat = 16;

/// Hand-offs one after the other, and the bytes that the busiest rank reads and writes, copies
/// through the slots included; where ranks outnumber the `cores`, all ranks' bytes over the cores.
[[nodiscard]] Cost direct_cost(std::span<const DirectProgram> programs, int cores);

}  // namespace chorus
