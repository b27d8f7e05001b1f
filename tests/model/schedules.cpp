#include "schedules.hpp"

#include <algorithm>
#include <numeric>
#include <random>

#include "model/schedule/contract.hpp"

namespace chorus::test {
namespace {

Schedule empty(std::string name, CollectiveKind kind, int n, int k, Rank root = 0) {
  return {.name = std::move(name),
          .collective = {kind, root},
          .world_size = n,
          .num_chunks = num_blocks(kind, n) * k,
          .steps = {}};
}

/// Block b moves from rank (b + first + s) to its successor in step s.
void add_ring_pass(Schedule& schedule, int first, Action action) {
  const int n = schedule.world_size;
  const int k = schedule.num_chunks / n;
  for (int s = 0; s < n - 1; ++s) {
    Step step;
    for (int b = 0; b < n; ++b) {
      const Rank src = (b + first + s) % n;
      for (int i = 0; i < k; ++i) step.push_back({src, (src + 1) % n, b * k + i, action});
    }
    schedule.steps.push_back(std::move(step));
  }
}

}  // namespace

Schedule ring_all_reduce(int n) {
  Schedule schedule = empty("ring", CollectiveKind::all_reduce, n, n);
  add_ring_pass(schedule, 1, Action::reduce);
  add_ring_pass(schedule, 0, Action::copy);
  return schedule;
}

Schedule ring_all_gather(int n, int k) {
  Schedule schedule = empty("ring", CollectiveKind::all_gather, n, k);
  add_ring_pass(schedule, 0, Action::copy);
  return schedule;
}

Schedule ring_reduce_scatter(int n, int k) {
  Schedule schedule = empty("ring", CollectiveKind::reduce_scatter, n, k);
  add_ring_pass(schedule, 1, Action::reduce);
  return schedule;
}

Schedule recursive_doubling_all_reduce(int n, int chunks) {
  Schedule schedule = empty("recursive_doubling", CollectiveKind::all_reduce, n, chunks);
  for (int distance = 1; distance < n; distance *= 2) {
    Step step;
    for (Rank r = 0; r < n; ++r) {
      for (int c = 0; c < chunks; ++c) step.push_back({r, r ^ distance, c, Action::reduce});
    }
    schedule.steps.push_back(std::move(step));
  }
  return schedule;
}

Schedule all_pairs(CollectiveKind kind, int n, int k) {
  Schedule schedule = empty("all_pairs", kind, n, k);
  const Action action = is_combining(kind) ? Action::reduce : Action::copy;
  Step step;
  for (int c = 0; c < schedule.num_chunks; ++c) {
    for (Rank src = 0; src < n; ++src) {
      for (Rank dst = 0; dst < n; ++dst) {
        if (src == dst || !starts_at(schedule, c, src) || !wanted_at(schedule, c, dst)) continue;
        step.push_back({src, dst, c, action});
      }
    }
  }
  schedule.steps.push_back(std::move(step));
  return schedule;
}

Schedule star(CollectiveKind kind, int n, Rank root, int k) {
  Schedule schedule = all_pairs(kind, n, k);
  schedule.name = "star";
  return rotated(schedule, root);
}

namespace {

class RandomSchedule {
 public:
  RandomSchedule(CollectiveKind kind, int n, std::uint32_t seed) : random_(seed) {
    const int k = num_blocks(kind, n) > 40 ? 1 : below(4) + 1;
    schedule_ = empty("random", kind, n, kind == CollectiveKind::barrier ? 1 : k,
                      is_rooted(kind) ? below(n) : 0);
  }

  Schedule make() {
    const bool together = below(2) == 0;  // neighbouring chunks alike, so that they coalesce
    auto seed = random_();
    for (ChunkId chunk = 0; chunk < schedule_.num_chunks; ++chunk) {
      if (!together || below(4) == 0) seed = random_();
      std::mt19937 same(seed);
      std::swap(same, random_);
      add(chunk);
      std::swap(same, random_);
    }
    if (below(2) == 0) {
      for (Step& step : schedule_.steps) std::shuffle(step.begin(), step.end(), random_);
    }
    return std::move(schedule_);
  }

 private:
  int below(int bound) { return static_cast<int>(random_() % static_cast<std::uint32_t>(bound)); }

  void put(int step, Transfer transfer) {
    if (static_cast<int>(schedule_.steps.size()) <= step) schedule_.steps.resize(step + 1);
    schedule_.steps[step].push_back(transfer);
  }

  void add(ChunkId chunk) {
    const bool combining = is_combining(schedule_.collective.kind);
    const Rank to = destination_of(schedule_, chunk);
    const Rank from = origin(schedule_, chunk);
    if (combining && schedule_.world_size > 1 && to == -1 && below(3) == 0) {
      one_shot(chunk);
      return;
    }
    const Rank hub = combining ? (to == -1 ? below(schedule_.world_size) : to) : from;
    const int reduced = combining ? reduce_tree(chunk, hub) : 0;
    if (to == -1) copy_tree(chunk, hub, reduced);
    if (to != -1 && to != hub) copy_path(chunk, hub, to);
  }

  void one_shot(ChunkId chunk) {
    for (Rank src = 0; src < schedule_.world_size; ++src) {
      for (Rank dst = 0; dst < schedule_.world_size; ++dst) {
        if (src != dst) put(0, {src, dst, chunk, Action::reduce});
      }
    }
  }

  std::vector<Rank> ranks_from(Rank first) {
    std::vector<Rank> ranks(schedule_.world_size);
    std::iota(ranks.begin(), ranks.end(), 0);
    std::shuffle(ranks.begin(), ranks.end(), random_);
    std::iter_swap(ranks.begin(), std::find(ranks.begin(), ranks.end(), first));
    return ranks;
  }

  /// A random tree over all ranks: parent[i] < i is an index into `order`.
  std::vector<int> parents(std::size_t size) {
    const int shape = below(3);  // chain, star-like, any
    std::vector<int> parent(size, -1);
    for (int i = 1; i < static_cast<int>(size); ++i) {
      parent[i] = shape == 0 ? i - 1 : shape == 1 ? below(std::min(i, 2)) : below(i);
    }
    return parent;
  }

  /// Children's steps come before their parent's. Returns the first step afterwards.
  int reduce_tree(ChunkId chunk, Rank root) {
    const auto order = ranks_from(root);
    const auto parent = parents(order.size());
    std::vector<int> ready(order.size(), 0);
    for (std::size_t i = order.size() - 1; i > 0; --i) {
      const int step = ready[i] + below(2);
      put(step, {order[i], order[parent[i]], chunk, Action::reduce});
      ready[parent[i]] = std::max(ready[parent[i]], step + 1);
    }
    return ready[0];
  }

  void copy_tree(ChunkId chunk, Rank root, int begin) {
    const auto order = ranks_from(root);
    const auto parent = parents(order.size());
    std::vector<int> ready(order.size(), begin);
    for (std::size_t i = 1; i < order.size(); ++i) {
      const int step = ready[parent[i]] + below(2);
      put(step, {order[parent[i]], order[i], chunk, Action::copy});
      ready[i] = step + 1;
    }
  }

  /// From `src` to `dst` by way of a few others.
  void copy_path(ChunkId chunk, Rank src, Rank dst) {
    auto order = ranks_from(src);
    std::erase(order, dst);
    order.resize(1 + static_cast<std::size_t>(below(std::min(3, static_cast<int>(order.size())))));
    order.push_back(dst);
    int step = 0;
    for (std::size_t i = 1; i < order.size(); ++i) {
      step += below(2);
      put(step++, {order[i - 1], order[i], chunk, Action::copy});
    }
  }

  std::mt19937 random_;
  Schedule schedule_;
};

}  // namespace

Schedule random_schedule(CollectiveKind kind, int n, std::uint32_t seed) {
  return RandomSchedule(kind, n, seed).make();
}

std::vector<Schedule> samples() {
  std::vector<Schedule> result = {
      ring_all_reduce(4),        ring_all_gather(4, 2),
      ring_reduce_scatter(4, 2), recursive_doubling_all_reduce(8, 3),
      ring_all_reduce(2),        star(CollectiveKind::scatter, 4, 2, 2)};
  for (const CollectiveKind kind : kAllKinds) {
    for (std::uint32_t seed = 0; seed < 4; ++seed) {
      result.push_back(random_schedule(kind, 4 + static_cast<int>(seed % 2), seed + 100));
    }
  }
  return result;
}

}  // namespace chorus::test
