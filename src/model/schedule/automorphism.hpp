// Wirings that repeat themselves: what holds for one rank holds for its counterparts.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "chorus/topology.hpp"
#include "model/schedule/symmetry.hpp"

namespace chorus {

/// A one-to-one map of a topology onto itself: links keep their ends, figures and port groups.
struct Automorphism {
  std::vector<int> nodes;   ///< by node: its image
  std::vector<int> links;   ///< by link
  std::vector<int> groups;  ///< by port group
};

/// The automorphism that takes rank r to `image[r]`, checked link by link and group by group.
/// Nothing if none was found: nodes that no rank tells apart are matched in the order of their
/// numbers, which may miss one.
[[nodiscard]] std::optional<Automorphism> automorphism(const Topology& topology,
                                                       std::span<const Rank> image);

/// A topology as equal cells of consecutive ranks, any of which can be moved to any other.
struct Repetition {
  Cells cells;  ///< one cell, without radices, if nothing repeats itself
  /// By radix: the automorphism that adds one to that digit.
  std::vector<Automorphism> generators;
};

/// Looks for cells as clear gaps in the distances from rank 0 suggest them (boxes, racks, rows of
/// racks), the smallest that the wiring allows: single ranks if all are alike. Where there are no
/// gaps, for the planes and rows of a torus.
[[nodiscard]] Repetition repetition_of(const Topology& topology);

/// For each of `count` things the least one that the maps (each by thing: its image) take it to or
/// from, over any number of moves.
[[nodiscard]] std::vector<int> orbits(std::size_t count,
                                      std::span<const std::vector<int>* const> maps);

}  // namespace chorus
