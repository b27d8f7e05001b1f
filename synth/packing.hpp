// Trees that use a topology's whole bandwidth: what is best for large data.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "chorus/schedule.hpp"
#include "chorus/topology.hpp"
#include "synth/budget.hpp"
#include "synth/network.hpp"

namespace chorus::synth {

/// A tree that brings data from its root to all ranks.
struct SpanningTree {
  Rank root = 0;
  std::vector<Rank> parent;  ///< by rank; -1 for the root

  bool operator==(const SpanningTree&) const = default;
};

/// Ranks of a tree, parents first.
[[nodiscard]] std::vector<Rank> from_root(const SpanningTree& tree);

/// Spanning out-trees, the same number from every source, each of which carries as much.
struct TreePacking {
  int trees_per_root = 0;
  std::vector<SpanningTree> trees;  ///< by root, ascending
  /// What the trees carry together, in GB/s: the algbw of an endless all_gather (or broadcast, with
  /// one source). Counted on the routes that data takes, so that it is what a schedule can reach.
  double rate_gb_s = 0;
  /// No trees carry more (a cut forbids it); where port groups couple links that have no node in
  /// common, or switches take in more than they pass on, perhaps not as much either.
  double limit_gb_s = 0;
  int depth = 0;  ///< hops from a root to the farthest rank

  [[nodiscard]] double share() const { return limit_gb_s > 0 ? rate_gb_s / limit_gb_s : 1; }
};

struct PackingOptions {
  /// Trees from every rank if none, else from this rank alone.
  std::optional<Rank> root = std::nullopt;
  /// Trees per root: exactly so many, or the fewest that reach the limit; if none of at most
  /// `most_trees` does, those that come nearest to it.
  std::optional<int> trees = std::nullopt;
  int most_trees = 64;
  /// Not by cuts, which are exact and may take seconds where nothing is symmetric.
  bool by_prices_alone = false;
  /// Of more edges than so many from each rank only some (thinned()). Ranks that send to few others
  /// share their ports among few: what is sent arrives sooner and can be sent on sooner.
  std::optional<int> edges_per_rank = std::nullopt;
};

/// Packs spanning trees as ForestColl does (Zhao et al., NSDI 2026): the best rate by maximum
/// flows, switches removed by splitting off, trees grown edge by edge. What that cannot see (port
/// groups that are no stars; routes that leave the paths that the flows take) is mended by taking
/// trees out and putting them back where the prices of the loaded resources are least.
///
/// Reversed: for combining; the trees are those of the topology turned round.
/// Deterministic by budget.seed. Returns the best packing when the budget is spent, nothing if
/// there was none yet. Throws TopologyError if the topology is not connected.
[[nodiscard]] std::optional<TreePacking> pack_trees(const Topology& topology, Direction direction,
                                                    const PackingOptions& options,
                                                    const Budget& budget);

/// Seconds per byte of its size that an all_gather, reduce_scatter, broadcast or reduce takes at
/// least, by the cuts of the topology; 0 for other collectives. Quick, and for most wirings the
/// bandwidth part of lower_bound(), which needs a solver.
[[nodiscard]] double least_by_cuts(const Topology& topology, Collective collective);

class Packings;

/// The schedule of an all_gather, reduce_scatter, all_reduce, broadcast or reduce of `size_bytes`
/// (chunk_bytes()'s counting) over packed trees, cut into pieces small enough to keep the trees
/// full. An all_reduce goes over trees with roots of their own (packing/spanning.hpp), the way to
/// them and back at the same time. Named "trees".
///
/// Nothing if the budget is spent before there are trees, or for an all_reduce where no two-way
/// edges join all ranks. Throws TopologyError if the topology is not connected, InputError for any
/// other collective.
[[nodiscard]] std::optional<Schedule> trees(Packings& packings, Collective collective,
                                            double size_bytes, const Budget& budget);

/// A broadcast over trees as those of an all_reduce, any rank of which may be the root. Where each
/// rank can send to very many others they are found much sooner than trees that grow from one root,
/// and the same serve the all_reduce.
[[nodiscard]] std::optional<Schedule> broadcast_over_spanning_trees(Packings& packings, Rank root,
                                                                    double size_bytes,
                                                                    const Budget& budget);

/// The same as trees() where nothing has been packed before. `options` as of Packings.
[[nodiscard]] std::optional<Schedule> trees(const Topology& topology, Collective collective,
                                            double size_bytes, const Budget& budget,
                                            const PackingOptions& options = {});

}  // namespace chorus::synth
