// Schedules written out for the tests of the model, which must not lean on collectives/.
#pragma once

#include <cstdint>
#include <vector>

#include "chorus/schedule.hpp"

namespace chorus::test {

inline constexpr CollectiveKind kAllKinds[] = {
    CollectiveKind::all_reduce, CollectiveKind::all_gather, CollectiveKind::reduce_scatter,
    CollectiveKind::all_to_all, CollectiveKind::broadcast,  CollectiveKind::reduce,
    CollectiveKind::gather,     CollectiveKind::scatter,    CollectiveKind::barrier,
};

/// n chunks travel the ring twice: reduced into place, then copied round. 2·(n−1) steps.
Schedule ring_all_reduce(int n);
/// Each rank's block travels the ring, k chunks each. n−1 steps.
Schedule ring_all_gather(int n, int k = 1);
Schedule ring_reduce_scatter(int n, int k = 1);
/// Partners at distance 1, 2, 4 … exchange and fold all they have; n is a power of two.
Schedule recursive_doubling_all_reduce(int n, int chunks = 1);
/// In one step every rank sends to every other, `kind` being all_reduce, all_gather,
/// reduce_scatter, all_to_all or barrier.
Schedule all_pairs(CollectiveKind kind, int n, int k = 1);
/// One step from or to the root.
Schedule star(CollectiveKind kind, int n, Rank root, int k = 1);

/// A few dozen small ones of all kinds.
std::vector<Schedule> samples();

/// A correct schedule of any kind with random trees, orders, step counts and chunk counts.
Schedule random_schedule(CollectiveKind kind, int n, std::uint32_t seed);

}  // namespace chorus::test
