// One maker per algorithm. algorithms() lists them with the collectives and world sizes they serve.
#pragma once

#include "chorus/schedule.hpp"
#include "collectives/algorithms.hpp"
#include "collectives/steps.hpp"

namespace chorus {

// ring.cpp
[[nodiscard]] Schedule make_ring(const AlgorithmInput& input);
[[nodiscard]] Schedule make_chain(const AlgorithmInput& input);
[[nodiscard]] Schedule make_scatter_all_gather(const AlgorithmInput& input);
/// All-gather around the ring 0, step, 2·step, … (step is 1 or −1): chunk c begins at rank c. What
/// ranks [0, senders) send of it.
[[nodiscard]] Steps ring_gather(int n, int direction, int senders);

// doubling.cpp
[[nodiscard]] Schedule make_recursive_doubling(const AlgorithmInput& input);
[[nodiscard]] Schedule make_recursive_halving(const AlgorithmInput& input);
[[nodiscard]] Schedule make_recursive_halving_doubling(const AlgorithmInput& input);
/// Every rank of [0, n) ends with the reduction of chunk 0 over all.
[[nodiscard]] Steps doubling_exchange(int n);

// tree.cpp
[[nodiscard]] Schedule make_binomial_tree(const AlgorithmInput& input);
[[nodiscard]] Schedule make_double_binary_tree(const AlgorithmInput& input);
/// Chunk 0 from rank 0 to all.
[[nodiscard]] Steps binomial_broadcast(int n);
/// Chunk c from rank 0 to rank c.
[[nodiscard]] Steps binomial_scatter(int n);

// bruck.cpp
[[nodiscard]] Schedule make_bruck(const AlgorithmInput& input);
[[nodiscard]] Schedule make_two_hop(const AlgorithmInput& input);
[[nodiscard]] Schedule make_dissemination(const AlgorithmInput& input);

// direct.cpp
[[nodiscard]] Schedule make_pairwise(const AlgorithmInput& input);
[[nodiscard]] Schedule make_one_shot(const AlgorithmInput& input);
[[nodiscard]] Schedule make_two_shot(const AlgorithmInput& input);

// hierarchical.cpp
[[nodiscard]] Schedule make_blueconnect(const AlgorithmInput& input);
[[nodiscard]] Schedule make_hierarchical(const AlgorithmInput& input);
[[nodiscard]] Schedule make_two_level(const AlgorithmInput& input);

}  // namespace chorus
