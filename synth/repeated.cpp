#include "synth/repeated.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <queue>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/index.hpp"
#include "synth/hierarchical.hpp"
#include "synth/list_scheduler.hpp"
#include "synth/predict.hpp"

namespace chorus::synth {
namespace {

using enum CollectiveKind;

constexpr std::size_t kMostHops = 300'000;  // of cell 0's chunks

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

/// in_order() for hops of cell 0's chunks.
Schedule in_order(std::string name, const RepeatedNetwork& network, CollectiveKind kind,
                  int num_chunks, const std::vector<Hop>& hops, double chunk_bytes) {
  const int n = network.folded().world_size();
  const std::vector<Edge>& edges = network.folded().edges();
  const auto place = [n](ChunkId chunk, Rank rank) { return std::int64_t{chunk} * n + rank; };
  std::unordered_map<std::int64_t, int> bringer;
  bringer.reserve(hops.size());
  JobGraph graph;
  std::vector<int> brought_by(hops.size(), -1);
  for (std::size_t i = 0; i < hops.size(); ++i) {
    const auto& [src, dst, chunk] = hops[i];
    graph.add({*network.edge(src, dst), {0, 1, -chunk}});
    if (const auto found = bringer.find(place(chunk, src)); found != bringer.end()) {
      brought_by[i] = found->second;
      graph.wait(static_cast<int>(i), found->second);
    }
    bringer.emplace(place(chunk, dst), static_cast<int>(i));
  }
  std::vector<Job>& jobs = graph.jobs();
  for (std::size_t i = jobs.size(); i-- > 0;) {
    auto& [way_s, reaches, chunk] = jobs[i].urgency;
    way_s +=
        edges[at(jobs[i].edge)].alpha_s + chunk_bytes * edges[at(jobs[i].edge)].beta_s_per_byte;
    if (brought_by[i] < 0) continue;
    auto& [way_before_s, reaches_before, chunk_before] = jobs[at(brought_by[i])].urgency;
    way_before_s = std::max(way_before_s, way_s);
    reaches_before += reaches;
  }
  // Steps: after that of the hop that brought the chunk, and not before what the source, or any of
  // its images, has begun. What is of other cells goes over an edge in a step of its own: within a
  // step a lane goes by chunk, and images are not ordered alike.
  struct Sent {
    int step = -1, cell = -1;
    ChunkId chunk = -1;
  };
  std::vector<Sent> last_on(edges.size());
  std::vector<int> last_step(at(network.cells().size()), 0);
  std::vector<int> steps(hops.size(), 0);
  Schedule schedule{std::move(name), {kind, 0}, n, num_chunks, {}, network.cells().radices()};
  ListScheduler scheduler(network.folded(), graph, chunk_bytes);
  for (const int job : scheduler.run()) {
    const Hop& hop = hops[at(job)];
    int& last = last_step[at(hop.src % network.cells().size())];
    int step = brought_by[at(job)] < 0 ? last : std::max(last, steps[at(brought_by[at(job)])] + 1);
    const int cell = network.cells().cell_of(hop.src);
    Sent& before = last_on[at(graph.jobs()[at(job)].edge)];
    if (before.step == step && (before.cell != cell || before.chunk > hop.chunk)) ++step;
    before = {step, cell, hop.chunk};
    last = steps[at(job)] = step;
    if (at(step) >= schedule.steps.size()) schedule.steps.resize(at(step) + 1);
    schedule.steps[at(step)].push_back({hop.src, hop.dst, hop.chunk, Action::copy});
  }
  return schedule;
}

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

std::string name_of(const std::vector<Stage>& stages, const Cells& cells) {
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
      if (pieces > 1 && (block * beta / pieces < alpha / 4 || hops_there > kMostHops)) break;
      std::vector<Hop> hops;
      Way way(network, hops);
      bool served = true;
      for (ChunkId chunk = 0; chunk < cells.size() * pieces && served; ++chunk) {
        way.start(chunk, chunk / pieces);
        served = std::all_of(stages.begin(), stages.end(),
                             [&](const Stage& stage) { return way.serve(stage); });
      }
      if (!served) break;
      schedules.push_back(
          in_order(name_of(stages, cells), network, all_gather, n * pieces, hops, block / pieces));
    }
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
  return {in_order("straight", network, all_to_all, n * n, hops, size_bytes / n)};
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
  if (likes < 2 || below < 2 || hops > kMostHops) return std::nullopt;
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
    case all_gather:
      return gathers(network, size_bytes, effort);
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
