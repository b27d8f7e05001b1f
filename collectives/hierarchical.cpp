// Level by level: inside the hosts first, where links are fast, and between them with what is left.
#include <utility>
#include <vector>

#include "collectives/families.hpp"

namespace chorus {
namespace {

/// Ranks as digits: digit i counts within level i, level 0 is the innermost.
class Levels {
 public:
  explicit Levels(const AlgorithmInput& input) : world_size_(input.world_size) {
    int stride = 1;
    for (const int size : input.levels) {
      if (size == 1) continue;
      sizes_.push_back(size);
      strides_.push_back(stride);
      stride *= size;
    }
  }

  [[nodiscard]] int count() const { return static_cast<int>(sizes_.size()); }
  [[nodiscard]] int size(int level) const { return sizes_[level]; }
  [[nodiscard]] int stride(int level) const { return strides_[level]; }
  [[nodiscard]] int world_size() const { return world_size_; }
  /// Of compact forms: every rank does what rank 0 does, moved digit by digit.
  [[nodiscard]] std::vector<int> symmetry(const AlgorithmInput& input) const {
    return input.compact ? sizes_ : std::vector<int>{};
  }
  [[nodiscard]] int digit(Rank rank, int level) const {
    return rank / strides_[level] % sizes_[level];
  }
  [[nodiscard]] Rank with_digit(Rank rank, int level, int digit) const {
    return rank + (digit - this->digit(rank, level)) * strides_[level];
  }
  /// `rank` with the digits below `level` taken from `other`.
  [[nodiscard]] Rank with_lower(Rank rank, int level, Rank other) const {
    return rank - rank % strides_[level] + other % strides_[level];
  }
  /// The number whose digits are those of `rank` over levels [0, levels), the innermost being the
  /// most significant: ranks that share inner digits become neighbours.
  [[nodiscard]] int turned(Rank rank, int levels) const {
    int result = 0;
    for (int level = 0; level < levels; ++level) {
      result = result * sizes_[level] + digit(rank, level);
    }
    return result;
  }

 private:
  int world_size_;
  std::vector<int> sizes_;
  std::vector<int> strides_;
};

enum class Inside { ring, direct };

/// All-gather, chunk c beginning at rank c, from the outermost level inwards. Before level i a rank
/// holds the chunks of the ranks that agree with it in digits 0 … i. What ranks [0, senders) send.
Steps gather_by_levels(const Levels& levels, Inside inside, int direction, int senders) {
  Steps steps;
  int first_step = 0;
  for (int level = levels.count() - 1; level >= 0; --level) {
    const int size = levels.size(level);
    const int outer_stride = levels.stride(level) * size;
    for (Rank rank = 0; rank < senders; ++rank) {
      const int digit = levels.digit(rank, level);
      for (int step = 0; step + 1 < size; ++step) {
        // Around the ring the chunks of the rank `step` places back; else the own ones to all.
        const bool ring = inside == Inside::ring;
        const int to = ring ? digit + direction : digit + 1 + step;
        const int of = ring ? digit - direction * step + size : digit;
        const Rank peer = levels.with_digit(rank, level, (to + size) % size);
        const Rank like = levels.with_digit(rank, level, of % size);
        for (ChunkId c = like % outer_stride; c < levels.world_size(); c += outer_stride) {
          send(steps, first_step + (ring ? step : 0), rank, peer, c);
        }
      }
    }
    first_step = static_cast<int>(steps.size());
  }
  return steps;
}

/// Chunk s·n + d from rank s < sources to rank d: digit 0 first, then digit 1, ….
Steps exchange_by_levels(const Levels& levels, int sources) {
  const int n = levels.world_size();
  Steps steps;
  int first_step = 0;
  for (int level = 0; level < levels.count(); ++level) {
    const int size = levels.size(level);
    for (Rank src = 0; src < sources; ++src) {
      for (Rank dst = 0; dst < n; ++dst) {
        const Rank holder = levels.with_lower(src, level, dst);
        const int distance = (levels.digit(dst, level) - levels.digit(src, level) + size) % size;
        if (distance == 0) continue;
        send(steps, first_step + distance - 1, holder,
             levels.with_digit(holder, level, levels.digit(dst, level)), src * n + dst);
      }
    }
    first_step += size - 1;
  }
  return steps;
}

/// Chunk c from rank 0 to rank c, from the outermost level inwards.
Steps scatter_by_levels(const Levels& levels) {
  Steps steps;
  for (int level = levels.count() - 1; level >= 0; --level) {
    const int stride = levels.stride(level);
    for (Rank dst = stride; dst < levels.world_size(); ++dst) {
      if (levels.digit(dst, level) == 0) continue;
      const Rank leader = dst / stride * stride;
      send(steps, levels.count() - 1 - level, levels.with_digit(leader, level, 0), leader, dst);
    }
  }
  return steps;
}

/// Number of chunks of broadcast_by_levels(): one per rank of a group of the outermost level.
int num_rails(const Levels& levels) { return levels.stride(levels.count() - 1); }

/// The root scatters inside its host, every rank of that host broadcasts its share to its
/// counterparts on the other hosts, and all-gathers inside the hosts complete it: all network cards
/// share the work.
Steps broadcast_by_levels(const Levels& levels) {
  const int rails = num_rails(levels);
  const int outermost = levels.count() - 1;
  const auto chunk_of = [&](Rank rail) { return levels.turned(rail, outermost); };
  Steps steps;
  for (int level = 0; level < outermost; ++level) {
    for (Rank rail = 0; rail < rails; ++rail) {
      if (levels.digit(rail, level) == 0) continue;
      const Rank holder = levels.with_lower(0, level, rail);
      send(steps, level, holder, levels.with_digit(holder, level, levels.digit(rail, level)),
           chunk_of(rail));
    }
  }
  const Steps across = binomial_broadcast(levels.size(outermost));
  int step = outermost;
  for (const Step& hops : across) {
    for (const Transfer& hop : hops) {
      for (Rank rail = 0; rail < rails; ++rail) {
        send(steps, step, hop.src * rails + rail, hop.dst * rails + rail, chunk_of(rail));
      }
    }
    ++step;
  }
  for (int level = outermost - 1; level >= 0; --level, ++step) {
    for (Rank rail = 0; rail < rails; ++rail) {
      for (Rank dst = 0; dst < levels.world_size(); ++dst) {
        const Rank src = levels.with_digit(dst, level, levels.digit(rail, level));
        // A rank that scattered the chunk holds it: its digits from this level on are 0.
        const bool holds = src == dst || dst < levels.stride(level);
        if (!holds && levels.with_lower(dst, level, rail) == dst) {
          send(steps, step, src, dst, chunk_of(rail));
        }
      }
    }
  }
  return steps;
}

Schedule from_levels(std::string_view name, const AlgorithmInput& input, const Levels& levels,
                     const Steps& gather, const Steps& reduce_scatter) {
  const int n = input.world_size;
  const auto finished = [&](const Steps& steps) {
    return finish(name, input, n, steps, levels.symmetry(input));
  };
  if (input.kind == CollectiveKind::all_gather) return finished(gather);
  if (input.kind == CollectiveKind::reduce_scatter) return finished(reduce_scatter);
  if (input.compact) return finished(joined(reduce_scatter, gather));
  // Which chunk a rank finishes is free here: neighbours in memory travel as one message.
  return finish(name, input, n, renamed_chunks(joined(reduce_scatter, gather), [&](ChunkId c) {
                  return levels.turned(c, levels.count());
                }));
}

}  // namespace

Schedule make_blueconnect(const AlgorithmInput& input) {
  const Levels levels(input);
  const auto gather = [&](int direction) {
    return gather_by_levels(levels, Inside::ring, direction, senders(input));
  };
  return from_levels("blueconnect", input, levels, gather(1), reversed(gather(-1)));
}

Schedule make_hierarchical(const AlgorithmInput& input) {
  const Levels levels(input);
  const int n = input.world_size;
  const auto finished = [&](int num_chunks, const Steps& steps) {
    return finish("hierarchical", input, num_chunks, steps);
  };
  switch (input.kind) {
    case CollectiveKind::all_to_all:
      return finish("hierarchical", input, n * n, exchange_by_levels(levels, senders(input)),
                    levels.symmetry(input));
    case CollectiveKind::broadcast:
      return finished(num_rails(levels), broadcast_by_levels(levels));
    case CollectiveKind::reduce:
      return finished(num_rails(levels), reversed(broadcast_by_levels(levels)));
    case CollectiveKind::scatter:
      return finished(n, scatter_by_levels(levels));
    case CollectiveKind::gather:
      return finished(n, reversed(scatter_by_levels(levels), Action::copy));
    default: {  // all_reduce, all_gather, reduce_scatter
      const Steps gather = gather_by_levels(levels, Inside::direct, 1, senders(input));
      return from_levels("hierarchical", input, levels, gather, reversed(gather));
    }
  }
}

Schedule make_two_level(const AlgorithmInput& input) {
  const Levels levels(input);
  const int inner = levels.size(0);
  const int groups = input.world_size / inner;
  const auto leader = [inner](Rank group) { return group * inner; };
  Steps tell;
  for (Rank rank = 0; rank < input.world_size; ++rank) {
    if (rank % inner != 0) send(tell, 0, rank - rank % inner, rank, 0);
  }
  const auto finished = [&](const Steps& steps) { return finish("two_level", input, 1, steps); };
  const Steps broadcast = joined(renamed_ranks(binomial_broadcast(groups), leader), tell);
  if (input.kind == CollectiveKind::broadcast) return finished(broadcast);
  if (input.kind == CollectiveKind::reduce) return finished(reversed(broadcast));
  return finished(
      joined(joined(reversed(tell), renamed_ranks(doubling_exchange(groups), leader)), tell));
}

}  // namespace chorus
