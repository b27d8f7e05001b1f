// Few distances around the circle of ranks, at any world size: 1, 2, 4, … or the digits of another
// base.
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

/// A block that has d ranks to go travels by the digits of d in base `radix`, the largest first:
/// then blocks for neighbours stay neighbours until they part. Blocks of ranks [0, sources).
Steps exchange_by_digits(int n, int sources, int radix) {
  int weight = 1;
  while (weight * radix < n) weight *= radix;
  Steps steps;
  int step = 0;
  for (; weight > 0; weight /= radix) {
    for (int digit = 1; digit < radix && digit * weight < n; ++digit, ++step) {
      for (Rank src = 0; src < sources; ++src) {
        for (int d = digit * weight; d < n; ++d) {
          if (d / weight % radix != digit) continue;
          const Rank holder = (src + d - d % (weight * radix)) % n;
          send(steps, step, holder, (holder + digit * weight) % n, src * n + (src + d) % n);
        }
      }
    }
  }
  return steps;
}

}  // namespace

Schedule make_bruck(const AlgorithmInput& input) {
  const int n = input.world_size;
  if (input.kind == CollectiveKind::all_to_all) {
    return finish("bruck", input, n * n, exchange_by_digits(n, senders(input), 2), around(input));
  }
  return from_gather("bruck", input, bruck_gather(n, senders(input)), around(input));
}

Schedule make_two_hop(const AlgorithmInput& input) {
  const int n = input.world_size;
  int radix = 2;
  while (radix * radix < n) ++radix;
  return finish("two_hop", input, n * n, exchange_by_digits(n, senders(input), radix),
                around(input));
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
