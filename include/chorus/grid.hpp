// Grids of ranks (replicas × stages × slices …) and where on the wiring each of their places goes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "chorus/export.hpp"
#include "chorus/schedule.hpp"
#include "chorus/topology.hpp"

namespace chorus {

/// What one step moves along some dimensions of a grid. Ranks that differ in these alone are a
/// group; all groups move at the same time.
struct GridFlow {
  /// Between which ranks of a group.
  enum class Pattern : std::uint8_t {
    ring,   ///< each to the next: all_reduce, all_gather, reduce_scatter
    chain,  ///< each to the next and to the one before, without closing: a pipeline
    pairs,  ///< each to every other: all_to_all
  };
  std::string name;
  std::vector<int> dims;  ///< indices into the sizes of the grid, ascending
  Pattern pattern = Pattern::ring;
  double bytes = 0;     ///< that a rank sends in one step; of a chain, in each direction
  double messages = 0;  ///< in how many messages
};

/// Which rank stands where, and what that costs.
struct GridMapping {
  /// What one message of a flow takes while all groups of the flow move at the same time.
  struct Price {
    double alpha_s = 0;
    double beta_s_per_byte = 0;  ///< per byte of GridFlow::bytes
  };
  /// By place, the last dimension running fastest.
  std::vector<Rank> ranks;
  std::vector<Price> prices;  ///< by flow
  double seconds = 0;         ///< Σ messages · alpha + bytes · beta
  /// Dimensions from the nearest ranks to the farthest.
  std::vector<int> nesting;
};

/// The mapping of the grid of `sizes` onto the ranks of `topology` under which `flows` take the
/// least time: every nesting of the dimensions is tried over the ranks as they are numbered and
/// over the ranks ordered by nearness, so that what talks most shares the fastest domain. Ties: the
/// first, so equal inputs give equal mappings. Throws InputError if the sizes do not multiply to
/// the ranks of `topology`, or these are more than 1024; TopologyError if ranks of a group are not
/// connected.
[[nodiscard]] CHORUS_API GridMapping map_grid(const Topology& topology, std::span<const int> sizes,
                                              std::span<const GridFlow> flows);

/// What `flows` cost where place i is `ranks[i]`.
[[nodiscard]] CHORUS_API GridMapping price_grid(const Topology& topology,
                                                std::span<const int> sizes,
                                                std::span<const GridFlow> flows,
                                                std::vector<Rank> ranks);

}  // namespace chorus
