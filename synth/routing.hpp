// Routing: which way every block of an exchange goes, so that nothing on the way is overloaded.
#pragma once

#include <optional>

#include "chorus/schedule.hpp"
#include "synth/budget.hpp"
#include "synth/network.hpp"

namespace chorus::synth {

/// A schedule "routed" for all_to_all, gather or scatter of `size_bytes` (PlanEntry's counting):
/// every block is cut into pieces, each piece goes a way of its own over as many ranks as it takes
/// so that the most loaded link or port group carries as little as possible, and in_order() puts
/// the hops in time. Where fair sharing makes that late, pairs of ranks are counted as links, too,
/// so that none carries much more than others. At small sizes the ways of least alpha are taken,
/// and between the two what is predicted to be faster.
///
/// Integral multi-commodity flow by exponential prices (after Garg & Könemann, FOCS 1998) and
/// rerouting one piece at a time; the prices give a lower bound by LP duality, and what meets it is
/// done. On a folded network the sources of one cell stand for all. Nothing for other kinds, for
/// one rank, where some pair is not connected, for more than 3,000,000 hops, for gather and scatter
/// on a folded network, or where `budget` is spent before the first schedule. Deterministic unless
/// the budget runs out.
[[nodiscard]] std::optional<Schedule> routed(const Network& network, Collective collective,
                                             double size_bytes, const Budget& budget);

}  // namespace chorus::synth
