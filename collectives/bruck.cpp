// Distances 1, 2, 4, … around the circle of ranks: ceil(log2 n) steps at any world size.
#include <algorithm>

#include "collectives/families.hpp"

namespace chorus {
namespace {

/// Before the step of `distance` rank r holds the chunks of ranks r, r + 1, … r + distance − 1.
/// What ranks [0, senders) send.
Steps bruck_gather(int n, int senders) {
  Steps steps;
  int step = 0;
  for (int distance = 1; distance < n; distance *= 2, ++step) {
    const int count = std::min(distance, n - distance);
    for (Rank rank = 0; rank < senders; ++rank) {
      const Rank to = (rank - distance + n) % n;
      const int before_wrap = std::min(count, n - rank);
      send(steps, step, rank, to, rank, before_wrap);
      send(steps, step, rank, to, 0, count - before_wrap);
    }
  }
  return steps;
}

/// A block that has d ranks to go travels by the powers of two in d, smallest first. Blocks of
/// ranks [0, sources).
Steps bruck_exchange(int n, int sources) {
  Steps steps;
  int step = 0;
  for (int distance = 1; distance < n; distance *= 2, ++step) {
    for (Rank src = 0; src < sources; ++src) {
      for (int d = 1; d < n; ++d) {
        if ((d & distance) == 0) continue;
        const Rank holder = (src + (d & (distance - 1))) % n;
        send(steps, step, holder, (holder + distance) % n, src * n + (src + d) % n);
      }
    }
  }
  return steps;
}

}  // namespace

Schedule make_bruck(const AlgorithmInput& input) {
  const int n = input.world_size;
  if (input.kind == CollectiveKind::all_to_all) {
    return finish("bruck", input, n * n, bruck_exchange(n, senders(input)), around(input));
  }
  return from_gather("bruck", input, bruck_gather(n, senders(input)), around(input));
}

Schedule make_dissemination(const AlgorithmInput& input) {
  const int n = input.world_size;
  Steps steps;
  int step = 0;
  for (int distance = 1; distance < n; distance *= 2, ++step) {
    for (Rank rank = 0; rank < n; ++rank) {
      send(steps, step, rank, (rank + distance) % n, 0, 1, Action::reduce);
    }
  }
  return finish("dissemination", input, 1, steps);
}

}  // namespace chorus
