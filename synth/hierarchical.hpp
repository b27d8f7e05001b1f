// Schedules composed level by level: each level solved once, chunks flowing through all of them.
#pragma once

#include <vector>

#include "synth/plan.hpp"
#include "synth/spread.hpp"

namespace chorus::synth {

/// How the units of one level pass on what one of them holds.
enum class Shape {
  star,  ///< the holder sends to all others: least latency
  ring,  ///< from each to the next: every link carries each byte once
};

/// all_gather (and broadcast) of `pieces` chunks per rank (of the root): outermost level first,
/// every rank handing on to its likes in the sibling units, then inwards. Each rank of a host uses
/// its own way out, so that all network cards share the work. Shapes: one per level, innermost
/// first; a level inside which some pair has no edge takes the way of least alpha between them.
///
/// Sources: Cho et al., BlueConnect (MLSys 2019), for the decomposition by dimensions; in_order()
/// makes the levels overlap.
[[nodiscard]] Spread level_by_level(const Network& network, Collective collective,
                                    const std::vector<Shape>& shapes, int pieces);

/// level_by_level() with the shapes and pieces that suit the size. Nothing where the network has
/// one level, or the collective is none of the two.
[[nodiscard]] std::vector<Schedule> hierarchical(const Task& task, const Effort& effort);

}  // namespace chorus::synth
