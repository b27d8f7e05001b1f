// Partners at distances 1, 2, 4, …. Where the world size is no power of two, the first ranks pair
// up, one of each pair takes part for both, and the other hears the result at the end.
#include "collectives/families.hpp"

namespace chorus {
namespace {

/// Who takes part among n ranks: the largest power of two.
struct Fold {
  int participants;
  int pairs;  ///< ranks 2i and 2i + 1, i < pairs, are one participant

  explicit Fold(int n) : participants(floor_power_of_two(n)), pairs(n - participants) {}

  [[nodiscard]] Rank rank(int participant) const {
    return participant < pairs ? 2 * participant : participant + pairs;
  }
};

/// Participant p sends its aligned run of 2^k participants' chunks to p xor 2^k, for each k.
/// begin(p) is the first chunk of participant p, begin(participants) the number of chunks.
/// Participants [0, senders) are written down.
template <class Begin>
Steps doubling_gather(const Fold& fold, int senders, Begin begin) {
  Steps steps;
  int step = 0;
  for (int distance = 1; distance < fold.participants; distance *= 2, ++step) {
    for (int p = 0; p < senders; ++p) {
      const int run = p & ~(distance - 1);
      send(steps, step, fold.rank(p), fold.rank(p ^ distance), begin(run),
           begin(run + distance) - begin(run));
    }
  }
  return steps;
}

/// Each pair's first rank tells the other all of [0, num_chunks).
Steps tell_others(const Fold& fold, int num_chunks) {
  Steps steps;
  for (int i = 0; i < fold.pairs; ++i) send(steps, 0, 2 * i, 2 * i + 1, 0, num_chunks);
  return steps;
}

/// All-gather of one chunk per rank, chunk c beginning at rank c.
Steps gather_by_doubling(const AlgorithmInput& input) {
  const int n = input.world_size;
  const Fold fold(n);
  const auto begin = [&](int p) { return fold.rank(p); };  // a pair's chunks are neighbours
  Steps collect;
  Steps tell;
  for (int i = 0; i < fold.pairs; ++i) {
    const Rank first = 2 * i;
    const Rank second = first + 1;
    send(collect, 0, second, first, second);
    send(tell, 0, first, second, 0, second);
    send(tell, 0, first, second, second + 1, n - second - 1);
  }
  const int writing = input.compact ? 1 : fold.participants;
  return joined(joined(collect, doubling_gather(fold, writing, begin)), tell);
}

}  // namespace

Steps doubling_exchange(int n) {
  const Fold fold(n);
  const Steps tell = tell_others(fold, 1);
  Steps exchange;
  int step = 0;
  for (int distance = 1; distance < fold.participants; distance *= 2, ++step) {
    for (int p = 0; p < fold.participants; ++p) {
      send(exchange, step, fold.rank(p), fold.rank(p ^ distance), 0, 1, Action::reduce);
    }
  }
  return joined(joined(reversed(tell), exchange), tell);
}

Schedule make_recursive_doubling(const AlgorithmInput& input) {
  const int n = input.world_size;
  if (input.kind == CollectiveKind::all_gather) {
    return finish("recursive_doubling", input, n, gather_by_doubling(input), by_bits(input));
  }
  return finish("recursive_doubling", input, 1, doubling_exchange(n));
}

Schedule make_recursive_halving(const AlgorithmInput& input) {
  const int n = input.world_size;
  return finish("recursive_halving", input, n, reversed(gather_by_doubling(input)), by_bits(input));
}

Schedule make_recursive_halving_doubling(const AlgorithmInput& input) {
  const Fold fold(input.world_size);
  const int num_chunks = fold.participants;
  const int writing = input.compact ? 1 : fold.participants;
  const Steps gather = joined(doubling_gather(fold, writing, [](int p) { return p; }),
                              tell_others(fold, num_chunks));
  const auto finished = [&](const Steps& steps) {
    return finish("recursive_halving_doubling", input, num_chunks, steps, by_bits(input));
  };
  if (input.kind == CollectiveKind::all_reduce) return finished(there_and_back(gather));

  const Steps scatter = renamed_ranks(binomial_scatter(fold.participants),
                                      [&](Rank participant) { return fold.rank(participant); });
  const Steps spread = without_repeats(joined(scatter, gather), input.world_size, num_chunks);
  return finished(input.kind == CollectiveKind::reduce ? reversed(spread) : spread);
}

}  // namespace chorus
