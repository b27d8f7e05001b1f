// Every rank talks to every other: nothing is relayed.
#include <algorithm>
#include <utility>
#include <vector>

#include "collectives/families.hpp"

namespace chorus {
namespace {

/// In round i (1 … n−1) rank r sends to partner(r): r xor i where that pairs all ranks up, so that
/// each exchanges with one other; else r + i.
Rank partner(Rank rank, int round, int n) {
  return n == floor_power_of_two(n) ? rank ^ round : (rank + round) % n;
}

/// How partner() repeats itself from rank to rank.
std::vector<int> symmetry_of_partners(const AlgorithmInput& input) {
  const bool exchange = input.world_size == floor_power_of_two(input.world_size);
  return exchange ? by_bits(input) : around(input);
}

/// Chunk c from rank c to all. With `rounds` each rank sends to one rank per step. What ranks
/// [0, senders) send of it.
Steps direct_gather(int n, bool rounds, int senders) {
  Steps steps;
  for (int round = 1; round < n; ++round) {
    for (Rank rank = 0; rank < senders; ++rank) {
      send(steps, rounds ? round - 1 : 0, rank, partner(rank, round, n), rank);
    }
  }
  return steps;
}

/// Chunk r·n + d from rank r to rank d.
Steps direct_exchange(int n, bool rounds, int senders) {
  Steps steps;
  for (int round = 1; round < n; ++round) {
    for (Rank rank = 0; rank < senders; ++rank) {
      const Rank to = partner(rank, round, n);
      send(steps, rounds ? round - 1 : 0, rank, to, rank * n + to);
    }
  }
  return steps;
}

/// Chunk 0 (or, scattering, chunk c) from rank 0 to each rank c.
Steps flat(int n, bool scatter) {
  Steps steps;
  for (Rank rank = 1; rank < n; ++rank) send(steps, 0, 0, rank, scatter ? rank : 0);
  return steps;
}

/// Chunk 0 of every rank is reduced into every other at once.
Steps all_pairs(int n) {
  Steps steps;
  for (Rank src = 0; src < n; ++src) {
    for (Rank dst = 0; dst < n; ++dst) {
      if (src != dst) send(steps, 0, src, dst, 0, 1, Action::reduce);
    }
  }
  return steps;
}

}  // namespace

Schedule make_pairwise(const AlgorithmInput& input) {
  const int n = input.world_size;
  if (input.kind == CollectiveKind::all_to_all) {
    return finish("pairwise", input, n * n, direct_exchange(n, true, senders(input)),
                  symmetry_of_partners(input));
  }
  return from_gather("pairwise", input, direct_gather(n, true, senders(input)),
                     symmetry_of_partners(input));
}

Schedule make_one_shot(const AlgorithmInput& input) {
  const int n = input.world_size;
  const auto finished = [&](int num_chunks, const Steps& steps, std::vector<int> symmetry = {}) {
    return finish("one_shot", input, num_chunks, steps, std::move(symmetry));
  };
  switch (input.kind) {
    case CollectiveKind::all_reduce:
    case CollectiveKind::barrier:
      return finished(1, all_pairs(n));
    case CollectiveKind::all_gather:
      return finished(n, direct_gather(n, false, senders(input)), symmetry_of_partners(input));
    case CollectiveKind::reduce_scatter:
      return finished(n, reversed(direct_gather(n, false, senders(input))),
                      symmetry_of_partners(input));
    case CollectiveKind::all_to_all:
      return finished(n * n, direct_exchange(n, false, senders(input)),
                      symmetry_of_partners(input));
    case CollectiveKind::broadcast:
      return finished(1, flat(n, false));
    case CollectiveKind::reduce:
      return finished(1, reversed(flat(n, false)));
    case CollectiveKind::scatter:
      return finished(n, flat(n, true));
    case CollectiveKind::gather:
      break;
  }
  return finished(n, reversed(flat(n, true), Action::copy));
}

Schedule make_two_shot(const AlgorithmInput& input) {
  const int n = input.world_size;
  if (input.kind == CollectiveKind::broadcast) {
    // Ranks 1 … n−1 each pass on one chunk: the root has enough to do with sending them out.
    Steps steps;
    for (Rank owner = 1; owner < n; ++owner) {
      send(steps, 0, 0, owner, owner - 1);
      for (Rank rank = 1; rank < n; ++rank) {
        if (rank != owner) send(steps, 1, owner, rank, owner - 1);
      }
    }
    return finish("two_shot", input, std::max(1, n - 1), steps);
  }
  const Steps gather = direct_gather(n, false, senders(input));
  // Rank c folds chunk c of all ranks in one step, the root's own share included: the order of
  // ranks would be lost if the root added its share at the end.
  if (input.kind == CollectiveKind::reduce) {
    return finish("two_shot", input, n,
                  joined(reversed(gather), reversed(flat(n, true), Action::copy)));
  }
  return from_gather("two_shot", input, gather, symmetry_of_partners(input));
}

}  // namespace chorus
