#include "synth/composing/hierarchical.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/index.hpp"
#include "synth/composing/levels.hpp"
#include "synth/routing/paths.hpp"

namespace chorus::synth {
namespace {

using enum CollectiveKind;

constexpr std::size_t kMostHierarchicalHops = 300'000;
// Times what ordering says of the best: links are shared fairly, which may be faster.
constexpr double kFairlyShared = 1.1, kMuchFairerShared = 1.3;
constexpr double kPassing = 1e-12;  // seconds: of equally long ways the one of fewer hops

/// Adds the hops of one chunk, each rank receiving it once.
class ChunkWay {
 public:
  ChunkWay(const Network& network, MulticastRouting& multicast)
      : network_(network), multicast_(multicast), holds_(at(network.world_size()), 0) {
    for (const Edge& edge : network.edges()) alphas_.push_back(edge.alpha_s + kPassing);
  }

  void start(ChunkId chunk, Rank origin) {
    for (const Rank rank : holders_) holds_[at(rank)] = 0;
    holders_ = {origin};
    holds_[at(origin)] = 1;
    chunk_ = chunk;
  }
  [[nodiscard]] const std::vector<Rank>& holders() const { return holders_; }

  /// Brings the chunk from `src`, which holds it, to `dst`, over others where there is no edge.
  /// False if there is no way.
  bool bring(Rank src, Rank dst) {
    if (holds_[at(dst)] != 0) return true;
    if (network_.edge(src, dst)) {
      hop(src, dst);
      return true;
    }
    // Ways are found for cell 0, of which that of `src` is an image.
    const Cells& cells = network_.cells();
    const int by = cells.cell_of(src);
    const Rank image = cells.minus(cells.cell_of(dst), by) * cells.size() + dst % cells.size();
    const auto [ways, is_new] = ways_.try_emplace(src % cells.size(), network_);
    if (is_new) ways->second.run(src % cells.size(), alphas_);
    if (!ways->second.reached(image)) return false;
    for (const int index : ways->second.path(image)) {
      const Rank to = end_of(network_, network_.edges()[at(index)], src);
      if (holds_[at(to)] == 0) hop(src, to);
      src = to;
    }
    return true;
  }

 private:
  void hop(Rank src, Rank dst) {
    multicast_.hops.push_back({src, dst, chunk_});
    holders_.push_back(dst);
    holds_[at(dst)] = 1;
  }

  const Network& network_;
  MulticastRouting& multicast_;
  std::vector<double> alphas_;                    // by edge
  std::unordered_map<Rank, CheapestPaths> ways_;  // by source
  std::vector<char> holds_;
  std::vector<Rank> holders_;
  ChunkId chunk_ = 0;
};

bool serve(const Levels& levels, const Stage& stage, Rank holder, ChunkWay& way) {
  Rank from = holder;
  for (int i = 1; i < levels.units(stage.first, stage.last); ++i) {
    const Rank to = levels.moved(holder, stage.first, i);
    if (!way.bring(from, to)) return false;
    if (stage.shape == Shape::ring) from = to;
  }
  return true;
}

/// Every way to take neighbouring levels together, each group a star, or a ring if it is one level;
/// outermost first.
std::vector<std::vector<Stage>> ways_to_stage(int levels) {
  std::vector<std::vector<Stage>> result;
  for (int cuts = 0; cuts < 1 << (levels - 1); ++cuts) {
    std::vector<Stage> stages;
    for (int level = levels; level-- > 0;) {
      if (level == levels - 1 || (cuts >> level & 1) != 0) stages.push_back({level, level + 1});
      stages.back().first = level;
    }
    for (int rings = 0; rings < 1 << stages.size(); ++rings) {
      std::vector<Stage> shaped = stages;
      bool possible = true;
      for (std::size_t i = 0; i < shaped.size(); ++i) {
        if ((rings >> i & 1) == 0) continue;
        shaped[i].shape = Shape::ring;
        possible &= shaped[i].last - shaped[i].first == 1;
      }
      if (possible) result.push_back(std::move(shaped));
    }
  }
  return result;
}

/// Where all of them take too long: the two that differ most.
std::vector<std::vector<Stage>> few_ways_to_stage(int levels, Shape outer) {
  std::vector<Stage> stages;
  for (int level = levels; level-- > 0;) {
    stages.push_back({level, level + 1, level == 0 ? Shape::star : outer});
  }
  std::vector<std::vector<Stage>> result = {stages};
  if (outer == Shape::ring && levels > 2) {
    stages.front().shape = Shape::star;
    result.push_back(std::move(stages));
  }
  return result;
}

std::string name_of(const std::vector<Stage>& stages, const Levels& levels) {
  std::string name = "hierarchical";
  for (const Stage& stage : stages) {
    name += fmt::format(" {}{}", stage.shape == Shape::ring ? "ring" : "star",
                        levels.units(stage.first, stage.last));
  }
  return name;
}

/// Every block straight to its end.
std::vector<Schedule> straight(const Task& task) {
  const int n = task.network.world_size();
  MulticastRouting multicast{task.collective, n * n, {}};
  ChunkWay way(task.network, multicast);
  for (Rank src = 0; src < task.network.cells().size(); ++src) {
    for (Rank dst = 0; dst < n; ++dst) {
      way.start(src * n + dst, src);
      if (!way.bring(src, dst)) return {};
    }
  }
  return {in_order("straight", task.network, multicast, task.size_bytes / n)};
}

/// Schedules of the levels of a network that swap unreduced values.
class Swaps {
 public:
  Swaps(const Network& network, const Levels& levels) : network_(network), levels_(levels) {}

  /// `ends`: the level behind the last of each stage, innermost first.
  std::optional<Schedule> of_all(const std::vector<int>& ends) const {
    // Whole buffers; where the wiring is folded in chunks, of which each cell has its own.
    Schedule schedule = empty("swap", network_.folded() ? network_.world_size() : 1);
    const int chunks = network_.folded() ? network_.cells().size() : 1;
    int first = 0;
    for (const int end : ends) {
      Step& step = schedule.steps.emplace_back();
      const int counterparts = levels_.units(first, end);
      for (Rank rank = 0; rank < network_.world_size(); ++rank) {
        for (int i = 1; i < counterparts; ++i) {
          const Rank other = levels_.moved(rank, first, i);
          for (ChunkId chunk = 0; chunk < chunks; ++chunk) {
            if (!send(rank, other, chunk, Action::reduce, step)) return std::nullopt;
          }
        }
      }
      schedule.name += fmt::format(" {}", counterparts);
      first = end;
    }
    return schedule;
  }

  /// Shares inside levels [0, inner), swapped across the others.
  std::optional<Schedule> of_shares(int inner) const {
    const int below = levels_.units(0, inner);
    const int boxes = network_.world_size() / below;
    const bool folded = network_.folded();
    Schedule schedule =
        empty(fmt::format("swap shares of {}", below), folded ? network_.world_size() : below);
    schedule.steps.resize(3);
    for (ChunkId chunk = 0; chunk < (folded ? network_.cells().size() : below); ++chunk) {
      for (int box = 0; box < boxes; ++box) {
        const Rank owner = levels_.ranks()[at(box * below + chunk)];
        for (int i = 0; i < below; ++i) {
          const Rank rank = levels_.ranks()[at(box * below + i)];
          if (rank == owner) continue;
          if (!send(rank, owner, chunk, Action::reduce, schedule.steps[0])) return std::nullopt;
          if (!send(owner, rank, chunk, Action::copy, schedule.steps[2])) return std::nullopt;
        }
        for (int other = 0; other < boxes; ++other) {
          const Rank like = levels_.ranks()[at(other * below + chunk)];
          if (other == box) continue;
          if (!send(owner, like, chunk, Action::reduce, schedule.steps[1])) return std::nullopt;
        }
      }
    }
    return schedule;
  }

 private:
  [[nodiscard]] Schedule empty(std::string name, int chunks) const {
    return {std::move(name),           {all_reduce, 0}, network_.world_size(), chunks, {},
            network_.cells().radices()};
  }

  bool send(Rank src, Rank dst, ChunkId chunk, Action action, Step& step) const {
    if (!network_.edge(src, dst)) return false;
    step.push_back({src, dst, chunk, action});
    return true;
  }

  const Network& network_;
  const Levels& levels_;
};

}  // namespace

std::optional<MulticastRouting> level_by_level(const Network& network, Collective collective,
                                               const std::vector<Stage>& stages, int pieces) {
  const Levels levels(network);
  const bool gathers = collective.kind == all_gather;
  const int blocks = gathers ? network.world_size() : 1;
  const int origins = gathers ? network.cells().size() : 1;
  MulticastRouting multicast{collective, blocks * pieces, {}, network.folded() ? pieces : 1};
  ChunkWay way(network, multicast);
  for (ChunkId chunk = 0; chunk < origins * pieces; ++chunk) {
    way.start(chunk, gathers ? chunk / pieces : collective.root);
    for (const Stage& stage : stages) {
      const std::vector<Rank> before = way.holders();
      for (const Rank holder : before) {
        if (!serve(levels, stage, holder, way)) return std::nullopt;
      }
    }
  }
  return multicast;
}

std::vector<Schedule> hierarchical(const Task& task, const Budget& budget) {
  const CollectiveKind kind = task.collective.kind;
  if (kind == all_to_all && task.network.folded()) return straight(task);
  if (kind != all_gather && kind != broadcast) return {};
  const Levels levels(task.network);
  if (levels.count() < 2 && !task.network.folded()) return {};
  const int n = task.network.world_size();
  const double block = task.size_bytes / (kind == all_gather ? n : 1);
  double beta = 0, alpha = 0;
  for (const Edge& edge : task.network.edges()) {
    beta = std::max(beta, edge.beta_s_per_byte);
    alpha = std::max(alpha, edge.alpha_s);
  }
  const std::size_t hops = at(n) * at(kind == all_gather ? task.network.cells().size() : 1);
  const auto variants =
      hops <= kMostHierarchicalHops
          ? ways_to_stage(levels.count())
          : few_ways_to_stage(levels.count(), block * beta < alpha / 8 ? Shape::star : Shape::ring);
  struct Candidate {
    std::string name;
    MulticastRouting multicast;
    double chunk_bytes = 0;
    double load_s = 0;
  };
  std::vector<Candidate> candidates;
  for (const std::vector<Stage>& stages : variants) {
    // Around a ring of m every byte waits for m - 1 others' latencies.
    double rings_s = 0;
    for (const Stage& stage : stages) {
      if (stage.shape == Shape::ring) rings_s += alpha * levels.units(stage.first, stage.last);
    }
    if (rings_s > 2 * block * beta * n) continue;
    for (const int pieces : {1, 2, 4, 8}) {
      if (budget.spent() && !candidates.empty()) break;
      const bool small = block * beta / pieces < alpha / 4;
      if (pieces > 1 && (small || hops * at(pieces) > kMostHierarchicalHops)) break;
      auto multicast = level_by_level(task.network, task.collective, stages, pieces);
      if (!multicast) break;
      const double load = load_s(task.network, *multicast, block / pieces);
      candidates.push_back({name_of(stages, levels), *std::move(multicast), block / pieces, load});
    }
  }
  // To order them takes longest: what loads a link for longer than another takes can be left out.
  std::ranges::stable_sort(candidates, {}, &Candidate::load_s);
  std::vector<Schedule> schedules;
  double least_s = std::numeric_limits<double>::infinity();
  for (const Candidate& candidate : candidates) {
    if (candidate.load_s > std::min(kFairlyShared * least_s, budget.useless_s)) break;
    if (budget.spent() && !schedules.empty()) break;
    std::optional<OrderedHops> made = ordered(candidate.name, task.network, candidate.multicast,
                                              candidate.chunk_bytes, kMuchFairerShared * least_s);
    if (!made) continue;
    least_s = std::min(least_s, made->seconds);
    schedules.push_back(std::move(made->schedule));
  }
  return schedules;
}

std::vector<Schedule> exchanging(const Task& task, const Budget& budget) {
  const Network& network = task.network;
  if (task.collective.kind != all_reduce) return {};
  const auto n = at(network.world_size());
  const Levels levels(network);
  const Swaps swaps(network, levels);
  std::vector<Schedule> schedules;
  const auto add = [&](std::optional<Schedule> schedule) {
    if (schedule) schedules.push_back(*std::move(schedule));
  };
  const std::size_t origins = network.folded() ? at(network.cells().size()) : 1;
  const int cuts = origins * n * n > kMostHierarchicalHops ? 0 : 1 << (levels.count() - 1);
  for (int cut = 0; cut < cuts && !budget.spent(); ++cut) {
    std::vector<int> ends;
    for (int level = 1; level < levels.count(); ++level) {
      if ((cut >> (level - 1) & 1) != 0) ends.push_back(level);
    }
    ends.push_back(levels.count());
    add(swaps.of_all(ends));
  }
  for (int inner = 1; inner < levels.count() && !budget.spent(); ++inner) {
    const auto boxes = n / at(levels.units(0, inner));
    const auto chunks = network.folded() ? origins : n / boxes;
    if (chunks * (2 * n + boxes * boxes) > kMostHierarchicalHops) continue;
    add(swaps.of_shares(inner));
  }
  return schedules;
}

}  // namespace chorus::synth
