// A multicast routing: which way every chunk goes, not yet when. What routing gives to ordering.
#pragma once

#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "chorus/schedule.hpp"
#include "synth/network.hpp"

namespace chorus::synth {

/// One chunk crossing one edge.
struct Hop {
  Rank src = 0;
  Rank dst = 0;
  ChunkId chunk = 0;

  bool operator==(const Hop&) const = default;
};

/// The ways of all chunks of a collective that only copies (all_gather, broadcast, all_to_all,
/// gather, scatter): for every chunk a tree from its origin to all that want it.
///
/// `hops` are in an order in which they could happen one by one: a hop leaves a rank that is the
/// chunk's origin or the end of an earlier hop of the chunk. No rank receives a chunk twice.
struct MulticastRouting {
  Collective collective = {};
  int num_chunks = 0;
  /// On a folded network those of cell 0's chunks.
  std::vector<Hop> hops;
  /// So many chunks that follow each other are pieces of one, sent one by one, the first pieces of
  /// all before the second of any; 1: what fits is sent together.
  int pieces = 1;
};

/// Puts the hops of `multicast` in order in time and numbers the steps, by list scheduling on
/// `network`: a hop can begin when its chunk is there; what its edge crosses is busy with it for
/// `chunk_bytes` times beta. Of the hops that could begin the one with the longest way still
/// before it (its chunk's remaining tree, in seconds) goes first, then the one whose chunk has the
/// most ranks still to reach, then the lower chunk. Chunks of an all_to_all whose time is that of
/// its bytes are mixed: each goes by a way up to a quarter of the longest longer than its own, the
/// same at every hop. Deterministic.
///
/// Steps: a hop's is after that of the hop that brought its chunk, and not before those of the hops
/// that its source began earlier: so the order in which a rank sends is that of the steps. On a
/// folded network the schedule has its symmetry.
[[nodiscard]] Schedule in_order(std::string_view name, const Network& network,
                                const MulticastRouting& multicast, double chunk_bytes);

/// in_order(), and when the last hop ends.
struct OrderedHops {
  Schedule schedule;
  double seconds = 0;
};
/// Nothing if the last hop ends after `give_up_s`.
[[nodiscard]] std::optional<OrderedHops> ordered(
    std::string_view name, const Network& network, const MulticastRouting& multicast,
    double chunk_bytes, double give_up_s = std::numeric_limits<double>::infinity());

/// How long what is busiest is busy, in seconds: less no order of the hops takes.
[[nodiscard]] double load_s(const Network& network, const MulticastRouting& multicast,
                            double chunk_bytes);

/// A schedule of hops that are in the order in which they are to begin.
[[nodiscard]] Schedule as_begun(std::string_view name, const Network& network,
                                const MulticastRouting& multicast);

/// The schedule of the mirror collective on the topology turned round: last step first, destination
/// to source, sums in place of copies. all_gather becomes reduce_scatter, broadcast becomes reduce.
[[nodiscard]] Schedule mirrored(const Schedule& spread);

/// The same schedule with every chunk cut into `pieces` that travel together.
[[nodiscard]] Schedule split_chunks(const Schedule& schedule, int pieces);

/// all_reduce as reduce_scatter followed by all_gather (or reduce by broadcast), made from a
/// combining and a spreading schedule of equal chunks.
[[nodiscard]] Schedule all_reduce_of(const Schedule& combine, const Schedule& spread);
/// The same of halves in other numbers of chunks, which are cut so that they are equal. Nothing if
/// that makes more chunks or transfers than are worth it.
[[nodiscard]] std::optional<Schedule> all_reduce_of_unequal(const Schedule& combine,
                                                            const Schedule& spread);

}  // namespace chorus::synth
