// The order in which the hops of trees go, found by letting them flow.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "chorus/schedule.hpp"
#include "chorus/topology.hpp"
#include "model/price/cost.hpp"
#include "synth/budget.hpp"
#include "synth/network.hpp"
#include "synth/packing.hpp"

namespace chorus::synth {

/// Which of the hops that wait for one lane (source, destination, action) goes first.
enum class Urgency {
  piece,  ///< that of the earliest piece, then the one with the most hops still before it
  round,  ///< as if pieces marched in step: piece plus hops made, then as above
  way,    ///< the one with the most hops still before it, then the earliest piece
};

struct Ordering {
  Urgency urgency = Urgency::piece;
  /// Hops towards the roots: not by the urgency, but those first that end last when the same data
  /// spreads the other way by the urgency.
  bool mirrored = false;
};

/// What is sent: the data of every tree in `pieces` pieces, first towards the roots over `combine`
/// (if any; trees of the topology turned round), then from them over `spread` (if any).
struct TreeFlow {
  Collective collective = {};
  const TreePacking* combine = nullptr;
  const TreePacking* spread = nullptr;
  int pieces = 1;
};

struct OrderedFlow {
  Schedule schedule;
  Simulation simulation;  ///< the run that gave the order; how long links are busy is not in it
};

/// Runs `flow` as simulate() would, but every lane takes, whenever it is free, the most urgent hop
/// that is ready: so none ever stands behind one that is late. Where very many transfers are under
/// way at once all_reduces run more roughly, in less than half of the time. Chunks: the pieces of a
/// root's trees, the first piece of each tree before the second of any. Deterministic. Nothing if
/// the budget is spent, or as soon as it is certain to take longer than `give_up_s`.
[[nodiscard]] std::optional<OrderedFlow> flowing_order(std::string_view name,
                                                       const Topology& topology,
                                                       const Routes& routes, const TreeFlow& flow,
                                                       Ordering ordering, double size_bytes,
                                                       const Budget& budget, double give_up_s);

/// The same over the edges of a network. On a folded one the trees are those from the ranks of cell
/// 0, and the schedule has its symmetry.
[[nodiscard]] std::optional<OrderedFlow> flowing_order(std::string_view name,
                                                       const Network& network, const TreeFlow& flow,
                                                       Ordering ordering, double size_bytes,
                                                       const Budget& budget);

}  // namespace chorus::synth
