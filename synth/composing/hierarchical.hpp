// Schedules composed level by level: each level solved once, chunks flowing through all of them.
#pragma once

#include <optional>
#include <vector>

#include "synth/multicast_routing.hpp"
#include "synth/plan.hpp"

namespace chorus::synth {

/// How the units of one level pass on what one of them holds.
enum class Shape {
  star,  ///< the holder sends to all others: least latency
  ring,  ///< from each to the next: every link carries each byte once
};

/// Levels [first, last) served together.
struct Stage {
  int first = 0;
  int last = 0;
  Shape shape = Shape::star;
};

/// all_gather (and broadcast) of `pieces` chunks per rank (of the root): stage by stage, outermost
/// first, every rank handing on to its counterparts in the sibling units, then inwards. Each rank
/// of a host uses its own way out, so that all network cards share the work. Where some pair has no
/// edge the way of least alpha between them is taken; nothing if there is none.
///
/// Sources: Cho et al., BlueConnect (MLSys 2019), for the decomposition by dimensions; in_order()
/// makes the levels overlap.
[[nodiscard]] std::optional<MulticastRouting> level_by_level(const Network& network,
                                                             Collective collective,
                                                             const std::vector<Stage>& stages,
                                                             int pieces);

/// level_by_level() with the stages and pieces that suit the size, where the network has levels;
/// all_to_all of a folded network, every block straight to its end. Nothing for other collectives.
[[nodiscard]] std::vector<Schedule> hierarchical(const Task& task, const Budget& budget);

/// All-reduce for small sizes: unreduced values are swapped with all counterparts at once. As few
/// hops one after the other as there are levels (or levels taken together): at each, innermost
/// first, every rank sends all it has to its counterparts and folds what they send. Also in thirds:
/// reduce inside to shares, swap the shares outside, hand the sums back. Nothing for other kinds,
/// or where two counterparts have no edge.
[[nodiscard]] std::vector<Schedule> exchanging(const Task& task, const Budget& budget);

}  // namespace chorus::synth
