// Every rank talks to its two neighbours only.
#include <algorithm>

#include "collectives/families.hpp"

namespace chorus {

Steps ring_gather(int n, int direction, int senders) {
  Steps steps;
  for (int step = 0; step + 1 < n; ++step) {
    for (Rank rank = 0; rank < senders; ++rank) {
      send(steps, step, rank, (rank + direction + n) % n, (rank - direction * step + n * n) % n);
    }
  }
  return steps;
}

Schedule make_ring(const AlgorithmInput& input) {
  const int n = input.world_size;
  // Reversing turns the ring around; both halves shall go to the next rank, over the same links.
  const Steps reduce_scatter = reversed(ring_gather(n, -1, senders(input)));
  const Steps all_gather = ring_gather(n, 1, senders(input));
  const auto finished = [&](const Steps& steps) {
    return finish("ring", input, n, steps, around(input));
  };
  if (input.kind == CollectiveKind::reduce_scatter) return finished(reduce_scatter);
  if (input.kind == CollectiveKind::all_gather) return finished(all_gather);
  return finished(joined(reduce_scatter, all_gather));
}

Schedule make_chain(const AlgorithmInput& input) {
  // The last chunk leaves the root when the others are under way: (C + n − 2) / C of the time
  // of one hop, so twice as many chunks as hops keep it under 1.5.
  constexpr int kMostChunks = 64;
  const int n = input.world_size;
  const int num_chunks = n <= 2 ? 1 : std::min(2 * (n - 1), kMostChunks);
  Steps steps;
  for (ChunkId chunk = 0; chunk < num_chunks; ++chunk) {
    for (Rank rank = 0; rank + 1 < n; ++rank) send(steps, chunk + rank, rank, rank + 1, chunk);
  }
  const bool reduce = input.kind == CollectiveKind::reduce;
  return finish("chain", input, num_chunks, reduce ? reversed(steps) : steps);
}

Schedule make_scatter_all_gather(const AlgorithmInput& input) {
  const int n = input.world_size;
  const Steps steps = without_repeats(joined(binomial_scatter(n), ring_gather(n, 1, n)), n, n);
  const bool reduce = input.kind == CollectiveKind::reduce;
  return finish("scatter_all_gather", input, n, reduce ? reversed(steps) : steps);
}

}  // namespace chorus
