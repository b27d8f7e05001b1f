// Schedules under a sketch (model/schedule/sketch.hpp): routes are found under it, then put in
// order.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "chorus/schedule.hpp"
#include "model/schedule/sketch.hpp"
#include "synth/budget.hpp"
#include "synth/network.hpp"
#include "synth/plan.hpp"

namespace chorus::synth {

/// The edges of `network` that the sketch leaves, resources kept. Throws InputError saying which
/// constraint does not fit the network or cuts some rank off from another, or which symmetry does
/// not map the logical topology onto itself.
[[nodiscard]] Network logical_network(const Network& network, const Sketch& sketch);

/// Why `schedule` does not keep to the logical network, as a sentence; nothing if it does.
[[nodiscard]] std::optional<std::string> strays(const Schedule& schedule, const Network& logical);

/// Sketches that suit the network: hosts by Levels; of the ranks that share a network card one
/// sends and another receives ("relay"), or each rank exchanges with its counterparts ("direct"),
/// or any with any ("all"); symmetric by hosts, and inside them, where the network is. Never empty;
/// none says the same as another.
[[nodiscard]] std::vector<Sketch> inferred_sketches(const Network& network);

/// A schedule "sketched" for `size_bytes` (PlanEntry's counting): ways under the sketch, one per
/// chunk and equal for what the symmetry maps onto each other, ordered by list scheduling; whatever
/// simulates faster stays.
///
/// all_gather, broadcast, all_to_all; reduce_scatter and reduce as mirror images on the links
/// turned round; nothing for others, for one rank, or where the budget is spent at once.
/// Deterministic unless it is spent. Throws InputError as logical_network() does.
[[nodiscard]] std::optional<Schedule> sketched(const Network& network, const Sketch& sketch,
                                               Collective collective, double size_bytes,
                                               const Budget& budget);

/// For the planner: with the sketches inferred, cut into as many chunks as suits the size.
/// all_gather, broadcast and their mirror images; routed() makes the other collectives.
[[nodiscard]] Strategy sketched_strategy();
/// With this sketch alone, its links never used backwards.
[[nodiscard]] Strategy sketched_strategy(const Sketch& sketch);

}  // namespace chorus::synth
