#include "synth/repeated.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <queue>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/index.hpp"
#include "synth/hierarchical.hpp"
#include "synth/list_scheduler.hpp"
#include "synth/predict.hpp"
#include "synth/repeated_trees.hpp"

namespace chorus::synth {
namespace {

using enum CollectiveKind;

constexpr std::size_t kMostRepeatedHops = 600'000;  // of cell 0's chunks
constexpr int kMostTreeCells = 2048;       // cells; beyond, looking for trees takes minutes
constexpr double kSmallestTree = 1 << 12;  // bytes of one tree's data

/// Levels that are served together, outermost stage first: digits [first, last) of the cells'
/// number; none: the ranks of a cell.
struct Stage {
  int first = 0;
  int last = 0;
  Shape shape = Shape::star;
};

int product(const Cells& cells, int first, int last) {
  int result = 1;
  for (int i = first; i < last; ++i) result *= cells.radices()[at(i)];
  return result;
}

/// The way of one chunk of cell 0, each rank receiving it once.
class Way {
 public:
  Way(const RepeatedNetwork& network, std::vector<Hop>& hops)
      : network_(network), hops_(hops), holds_(at(network.folded().world_size()), 0) {}

  void start(ChunkId chunk, Rank origin) {
    chunk_ = chunk;
    std::fill(holds_.begin(), holds_.end(), 0);
    holds_[at(origin)] = 1;
    holders_ = {origin};
  }

  /// False if an edge is missing.
  bool serve(const Stage& stage) {
    const std::vector<Rank> before = holders_;
    return std::all_of(before.begin(), before.end(), [&](Rank holder) {
      return stage.first == stage.last ? serve_cell(stage.shape, holder)
                                       : serve_likes(stage, holder);
    });
  }

  /// Over others of the cell where there is no edge.
  bool bring(Rank src, Rank dst) {
    if (holds_[at(dst)] != 0) return true;
    if (network_.edge(src, dst)) {
      hop(src, dst);
      return true;
    }
    const int size = network_.cells().size();
    const std::vector<Rank>& before = ways_from(src % size);
    const Rank last = before[at(dst % size)];
    if (last < 0 || last == src % size) return false;
    const Rank relay = src / size * size + last;
    if (!bring(src, relay)) return false;
    if (holds_[at(dst)] == 0) hop(relay, dst);
    return true;
  }

 private:
  bool serve_likes(const Stage& stage, Rank holder) {
    const Cells& cells = network_.cells();
    const int unit = product(cells, 0, stage.first);
    const int count = product(cells, stage.first, stage.last);
    Rank from = holder;
    for (int i = 1; i < count; ++i) {
      const Rank to = cells.moved(holder, i * unit);
      if (!network_.edge(from, to)) return false;
      hop(from, to);
      if (stage.shape == Shape::ring) from = to;
    }
    return true;
  }

  bool serve_cell(Shape shape, Rank holder) {
    const int size = network_.cells().size();
    const Rank first = holder / size * size;
    Rank from = holder;
    for (int i = 1; i < size; ++i) {
      const Rank to = first + (holder - first + i) % size;
      if (!bring(from, to)) return false;
      if (shape == Shape::ring) from = to;
    }
    return true;
  }

  /// Within the cell, by rank of the cell: the one before it on the way of least alpha, or -1.
  const std::vector<Rank>& ways_from(Rank source) {
    const auto [known, is_new] = ways_.try_emplace(source);
    if (!is_new) return known->second;
    const int size = network_.cells().size();
    std::vector<Rank>& before = known->second;
    before.assign(at(size), -1);
    std::vector<double> best(at(size), 1e300);
    std::priority_queue<std::pair<double, Rank>, std::vector<std::pair<double, Rank>>,
                        std::greater<>>
        queue;
    best[at(source)] = 0;
    queue.push({0, source});
    while (!queue.empty()) {
      const auto [alpha_s, rank] = queue.top();
      queue.pop();
      if (alpha_s > best[at(rank)]) continue;
      for (Rank next = 0; next < size; ++next) {
        const auto edge = network_.edge(rank, next);
        if (!edge) continue;
        const double reached = alpha_s + network_.folded().edges()[at(*edge)].alpha_s;
        if (reached >= best[at(next)]) continue;
        best[at(next)] = reached;
        before[at(next)] = rank;
        queue.push({reached, next});
      }
    }
    return before;
  }

  void hop(Rank src, Rank dst) {
    hops_.push_back({src, dst, chunk_});
    holders_.push_back(dst);
    holds_[at(dst)] = 1;
  }

  const RepeatedNetwork& network_;
  std::vector<Hop>& hops_;
  std::vector<char> holds_;
  std::vector<Rank> holders_;
  std::unordered_map<Rank, std::vector<Rank>> ways_;
  ChunkId chunk_ = 0;
};

/// The hops of cell 0's chunks, every `pieces` of which that follow each other are pieces of one,
/// and the schedules that put them in order.
class Ordering {
 public:
  Ordering(std::string name, const RepeatedNetwork& network, CollectiveKind kind, int num_chunks,
           int pieces, std::vector<Hop> hops)
      : name_(std::move(name)),
        network_(network),
        kind_(kind),
        num_chunks_(num_chunks),
        pieces_(pieces),
        hops_(std::move(hops)),
        brought_by_(hops_.size(), -1) {
    std::unordered_map<std::int64_t, int> bringer;
    bringer.reserve(hops_.size());
    for (std::size_t i = 0; i < hops_.size(); ++i) {
      const auto& [src, dst, chunk] = hops_[i];
      if (const auto found = bringer.find(place(chunk, src)); found != bringer.end()) {
        brought_by_[i] = found->second;
      }
      bringer.emplace(place(chunk, dst), static_cast<int>(i));
    }
  }

  /// By list scheduling, as in_order() does it. The first pieces of all go before the second of
  /// any: where ways share a link fairly they arrive together.
  [[nodiscard]] Schedule listed(double chunk_bytes) const {
    const std::vector<Edge>& edges = network_.folded().edges();
    JobGraph graph;
    for (std::size_t i = 0; i < hops_.size(); ++i) {
      graph.add({*network_.edge(hops_[i].src, hops_[i].dst), {0, 1, -hops_[i].chunk}});
      if (brought_by_[i] >= 0) graph.wait(static_cast<int>(i), brought_by_[i]);
    }
    std::vector<Job>& jobs = graph.jobs();
    double longest_s = 0;
    for (std::size_t i = jobs.size(); i-- > 0;) {
      auto& [way_s, reaches, chunk] = jobs[i].urgency;
      const Edge& edge = edges[at(jobs[i].edge)];
      way_s += edge.alpha_s + chunk_bytes * edge.beta_s_per_byte;
      longest_s = std::max(longest_s, way_s);
      if (brought_by_[i] < 0) continue;
      auto& [way_before_s, reaches_before, chunk_before] = jobs[at(brought_by_[i])].urgency;
      way_before_s = std::max(way_before_s, way_s);
      reaches_before += reaches;
    }
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      std::get<0>(jobs[i].urgency) -= hops_[i].chunk % pieces_ * 2 * longest_s;
    }
    ListScheduler scheduler(network_.folded(), std::move(graph), chunk_bytes);
    return numbered(scheduler.run());
  }

 private:
  [[nodiscard]] std::int64_t place(ChunkId chunk, Rank rank) const {
    return std::int64_t{chunk} * network_.folded().world_size() + rank;
  }

  /// Steps for hops that begin in this order: after that of the hop that brought the chunk, and not
  /// before what the source, or any of its images, has begun. What is of other cells goes over an
  /// edge in a step of its own: within a step a lane goes by chunk, and images are not ordered
  /// alike. Pieces of one chunk do, too: in one step they would be one message again.
  [[nodiscard]] Schedule numbered(const std::vector<int>& order) const {
    struct Sent {
      int step = -1, cell = -1;
      ChunkId chunk = -1;
    };
    const Cells& cells = network_.cells();
    std::vector<Sent> last_on(network_.folded().edges().size());
    std::vector<int> last_step(at(cells.size()), 0);
    std::vector<int> steps(hops_.size(), 0);
    Schedule schedule{name_,       {kind_, 0}, network_.folded().world_size(),
                      num_chunks_, {},         cells.radices()};
    for (const int index : order) {
      const Hop& hop = hops_[at(index)];
      const int bringer = brought_by_[at(index)];
      int& last = last_step[at(hop.src % cells.size())];
      int step = bringer < 0 ? last : std::max(last, steps[at(bringer)] + 1);
      const int cell = cells.cell_of(hop.src);
      Sent& before = last_on[at(*network_.edge(hop.src, hop.dst))];
      const bool piece = pieces_ > 1 && before.chunk / pieces_ == hop.chunk / pieces_;
      if (before.step == step && (before.cell != cell || before.chunk > hop.chunk || piece)) ++step;
      before = {step, cell, hop.chunk};
      last = steps[at(index)] = step;
      if (at(step) >= schedule.steps.size()) schedule.steps.resize(at(step) + 1);
      schedule.steps[at(step)].push_back({hop.src, hop.dst, hop.chunk, Action::copy});
    }
    return schedule;
  }

  std::string name_;
  const RepeatedNetwork& network_;
  CollectiveKind kind_;
  int num_chunks_;
  int pieces_;
  std::vector<Hop> hops_;
  std::vector<int> brought_by_;  // the hop that brings the chunk to a hop's source, or -1
};

/// Every way to take neighbouring levels together, each group a star, or a ring if it is one level.
std::vector<std::vector<Stage>> ways_to_stage(const Cells& cells) {
  std::vector<std::vector<Stage>> result;
  const auto k = static_cast<int>(cells.radices().size());
  for (int cuts = 0; cuts < 1 << (k - 1); ++cuts) {
    std::vector<Stage> stages;  // innermost first
    for (int level = 0; level < k; ++level) {
      if (level == 0 || (cuts >> (level - 1) & 1) != 0) stages.push_back({level, level});
      ++stages.back().last;
    }
    if (cells.size() > 1) stages.insert(stages.begin(), Stage{});
    for (int rings = 0; rings < 1 << stages.size(); ++rings) {
      std::vector<Stage> shaped(stages.rbegin(), stages.rend());
      bool possible = true;
      for (std::size_t i = 0; i < shaped.size(); ++i) {
        if ((rings >> i & 1) == 0) continue;
        shaped[i].shape = Shape::ring;
        possible &= shaped[i].last - shaped[i].first <= 1;
      }
      if (possible) result.push_back(std::move(shaped));
    }
  }
  return result;
}

std::string stages_name(const std::vector<Stage>& stages, const Cells& cells) {
  std::string name = "hierarchical";
  for (const Stage& stage : stages) {
    const int count =
        stage.first == stage.last ? cells.size() : product(cells, stage.first, stage.last);
    name += fmt::format(" {}{}", stage.shape == Shape::ring ? "ring" : "star", count);
  }
  return name;
}

std::vector<Schedule> gathers(const RepeatedNetwork& network, double size_bytes,
                              const Effort& effort) {
  const Cells& cells = network.cells();
  const int n = network.folded().world_size();
  const double block = size_bytes / n;
  double beta = 0, alpha = 0;
  for (const Edge& edge : network.folded().edges()) {
    beta = std::max(beta, edge.beta_s_per_byte);
    alpha = std::max(alpha, edge.alpha_s);
  }
  std::vector<Schedule> schedules;
  for (const std::vector<Stage>& stages : ways_to_stage(cells)) {
    // Around a ring of m every byte waits for m - 1 others' latencies.
    double rings_s = 0;
    for (const Stage& stage : stages) {
      if (stage.shape == Shape::ring) rings_s += alpha * product(cells, stage.first, stage.last);
    }
    if (rings_s > 2 * block * beta * n) continue;
    for (const int pieces : {1, 2, 4, 8}) {
      if (effort.spent() && !schedules.empty()) return schedules;
      const std::size_t hops_there = at(n - 1) * at(cells.size()) * at(pieces);
      if (pieces > 1 && (block * beta / pieces < alpha / 4 || hops_there > kMostRepeatedHops))
        break;
      std::vector<Hop> hops;
      Way way(network, hops);
      bool served = true;
      for (ChunkId chunk = 0; chunk < cells.size() * pieces && served; ++chunk) {
        way.start(chunk, chunk / pieces);
        served = std::all_of(stages.begin(), stages.end(),
                             [&](const Stage& stage) { return way.serve(stage); });
      }
      if (!served) break;
      schedules.push_back(Ordering(stages_name(stages, cells), network, all_gather, n * pieces,
                                   pieces, std::move(hops))
                              .listed(block / pieces));
    }
  }
  return schedules;
}

/// Over trees from every rank: what suits large sizes whatever the inside of a cell is like.
std::vector<Schedule> over_trees(const RepeatedNetwork& network, double size_bytes,
                                 const Effort& effort) {
  const Cells& cells = network.cells();
  const int n = network.folded().world_size();
  const double block = size_bytes / n;
  double least_alpha = std::numeric_limits<double>::infinity(), beta = 0;
  for (const Edge& edge : network.folded().edges()) {
    least_alpha = std::min(least_alpha, edge.alpha_s);
    beta = std::max(beta, edge.beta_s_per_byte);
  }
  // Looking for trees takes long, and latency is another matter.
  if (cells.count() > kMostTreeCells || block * beta < least_alpha / 8) return {};
  const std::size_t hops_of_one = at(n - 1) * at(cells.size());
  std::optional<RepeatedTrees> best;
  for (const int trees : {1, 2, 4, 8}) {
    if (trees > 1 && (hops_of_one * at(trees) > kMostRepeatedHops || block / trees < kSmallestTree))
      break;
    std::optional<RepeatedTrees> found = pack_repeated_trees(network, trees, effort);
    if (!found) break;
    const double gain =
        best ? best->load_s_per_byte / best->trees_per_rank / (found->load_s_per_byte / trees) : 2;
    if (gain > 1.01) best = std::move(found);
  }
  std::vector<Schedule> schedules;
  for (int pieces = 1; best && pieces <= 64; pieces *= 4) {
    if (effort.spent() && !schedules.empty()) break;
    const int per_rank = best->trees_per_rank * pieces;
    const bool many =
        hops_of_one * at(per_rank) > kMostRepeatedHops || block / per_rank < kSmallestTree;
    if (pieces > 1 && many) break;
    std::vector<Hop> hops;
    for (std::size_t tree = 0; tree < best->trees.size(); ++tree) {
      for (int piece = 0; piece < pieces; ++piece) {
        const auto chunk = static_cast<ChunkId>(tree) * pieces + piece;
        for (const Hop& hop : best->trees[tree]) hops.push_back({hop.src, hop.dst, chunk});
      }
    }
    schedules.push_back(
        Ordering("trees", network, all_gather, n * per_rank, pieces, std::move(hops))
            .listed(block / per_rank));
  }
  return schedules;
}

/// Every block straight to its end, over others of the cell where there is no edge.
std::vector<Schedule> exchanges(const RepeatedNetwork& network, double size_bytes) {
  const int n = network.folded().world_size();
  std::vector<Hop> hops;
  Way way(network, hops);
  for (Rank src = 0; src < network.cells().size(); ++src) {
    for (Rank dst = 0; dst < n; ++dst) {
      if (src == dst) continue;
      way.start(src * n + dst, src);
      if (!way.bring(src, dst)) return {};
    }
  }
  return {
      Ordering("straight", network, all_to_all, n * n, 1, std::move(hops)).listed(size_bytes / n)};
}

/// all_reduce in three: what the ranks of `inner` levels have is reduced to each one's share, the
/// shares are exchanged, unreduced, with all likes at once, and the sums are handed back. Two
/// latencies across the outer levels become one, for more bytes.
std::optional<Schedule> exchanged_shares(const RepeatedNetwork& network, int inner) {
  const Cells& cells = network.cells();
  const int n = network.folded().world_size();
  const int below = cells.size() * product(cells, 0, inner);
  const int likes = n / below;
  const auto hops = at(cells.size()) * (2 * at(n) + at(likes) * at(likes));
  if (likes < 2 || below < 2 || hops > kMostRepeatedHops) return std::nullopt;
  Schedule schedule{fmt::format("exchange {} of {}", likes, below),
                    {all_reduce, 0},
                    n,
                    n,
                    std::vector<Step>(3),
                    cells.radices()};
  for (ChunkId chunk = 0; chunk < cells.size(); ++chunk) {
    for (Rank first = 0; first < n; first += below) {
      const Rank owner = first + chunk;
      for (Rank rank = first; rank < first + below; ++rank) {
        if (rank == owner) continue;
        if (!network.edge(rank, owner) || !network.edge(owner, rank)) return std::nullopt;
        schedule.steps[0].push_back({rank, owner, chunk, Action::reduce});
        schedule.steps[2].push_back({owner, rank, chunk, Action::copy});
      }
      for (Rank other = chunk; other < n; other += below) {
        if (other == owner) continue;
        if (!network.edge(owner, other)) return std::nullopt;
        schedule.steps[1].push_back({owner, other, chunk, Action::reduce});
      }
    }
  }
  return schedule;
}

std::vector<Schedule> direct_reductions(const RepeatedNetwork& network) {
  std::vector<Schedule> schedules;
  for (int inner = 0; inner < static_cast<int>(network.cells().radices().size()); ++inner) {
    if (auto schedule = exchanged_shares(network, inner)) {
      schedules.push_back(*std::move(schedule));
    }
  }
  return schedules;
}

}  // namespace

std::vector<Schedule> repeated_schedules(const RepeatedNetwork& network, CollectiveKind kind,
                                         double size_bytes, const Effort& effort) {
  switch (kind) {
    case all_gather: {
      std::vector<Schedule> schedules = gathers(network, size_bytes, effort);
      std::ranges::move(over_trees(network, size_bytes, effort), std::back_inserter(schedules));
      return schedules;
    }
    case all_to_all:
      return exchanges(network, size_bytes);
    case all_reduce:
      return direct_reductions(network);
    default:
      return {};
  }
}

std::optional<double> replayed_seconds(const Schedule& schedule, const RepeatedNetwork& network,
                                       double size_bytes) {
  if (schedule.symmetry != network.cells().radices()) return std::nullopt;
  return replayed_seconds(schedule, network.folded(), size_bytes,
                          [&](Rank src, Rank dst) { return network.edge(src, dst); });
}

}  // namespace chorus::synth
