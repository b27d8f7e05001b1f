#include "synth/hierarchical.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <queue>
#include <string>
#include <tuple>
#include <utility>

#include "base/index.hpp"
#include "synth/levels.hpp"

namespace chorus::synth {
namespace {

constexpr double kMostHierarchicalHops = 300'000;

/// For every rank the one before it on the way of least alpha from `source`, by (alpha, hops,
/// rank).
std::vector<Rank> ways_from(const Network& network, Rank source) {
  using Item = std::tuple<double, int, Rank>;
  std::vector<Rank> before(at(network.world_size()), -1);
  std::vector<std::pair<double, int>> best(at(network.world_size()), {1e300, 0});
  std::priority_queue<Item, std::vector<Item>, std::greater<>> queue;
  queue.push({0, 0, source});
  best[at(source)] = {0, 0};
  while (!queue.empty()) {
    const auto [alpha, hops, rank] = queue.top();
    queue.pop();
    if (best[at(rank)] < std::pair(alpha, hops)) continue;
    for (const int index : network.out(rank)) {
      const Edge& edge = network.edges()[at(index)];
      const std::pair reached(alpha + edge.alpha_s, hops + 1);
      if (!(reached < best[at(edge.dst)])) continue;
      best[at(edge.dst)] = reached;
      before[at(edge.dst)] = rank;
      queue.push({reached.first, reached.second, edge.dst});
    }
  }
  return before;
}

/// Adds the hops of one chunk, each rank receiving it once.
class ChunkWay {
 public:
  ChunkWay(const Network& network, std::vector<std::vector<Rank>>& ways, Spread& spread)
      : network_(network), ways_(ways), spread_(spread), holds_(at(network.world_size()), 0) {}

  void start(ChunkId chunk, Rank origin) {
    for (const Rank rank : holders_) holds_[at(rank)] = 0;
    holders_ = {origin};
    holds_[at(origin)] = 1;
    chunk_ = chunk;
  }
  [[nodiscard]] std::vector<Rank> holders() const { return holders_; }

  /// Brings the chunk from `src`, which holds it, to `dst`, over others where there is no edge.
  void bring(Rank src, Rank dst) {
    if (holds_[at(dst)] != 0) return;
    if (network_.edge(src, dst)) {
      hop(src, dst);
      return;
    }
    if (ways_[at(src)].empty()) ways_[at(src)] = ways_from(network_, src);
    const Rank before = ways_[at(src)][at(dst)];
    bring(src, before);
    if (holds_[at(dst)] == 0) hop(before, dst);
  }

 private:
  void hop(Rank src, Rank dst) {
    spread_.hops.push_back({src, dst, chunk_});
    holders_.push_back(dst);
    holds_[at(dst)] = 1;
  }

  const Network& network_;
  std::vector<std::vector<Rank>>& ways_;
  Spread& spread_;
  std::vector<char> holds_;
  std::vector<Rank> holders_;
  ChunkId chunk_ = 0;
};

void spread_level(const Levels& levels, int level, Shape shape, Rank holder, ChunkWay& way) {
  const int size = levels.sizes()[at(level)];
  const int digit = levels.digit(holder, level);
  Rank from = holder;
  for (int i = 1; i < size; ++i) {
    const Rank to = levels.with_digit(holder, level, (digit + i) % size);
    way.bring(from, to);
    if (shape == Shape::ring) from = to;
  }
}

}  // namespace

Spread level_by_level(const Network& network, Collective collective,
                      const std::vector<Shape>& shapes, int pieces) {
  const Levels levels(network);
  const bool gathers = collective.kind == CollectiveKind::all_gather;
  const int origins = gathers ? network.world_size() : 1;
  Spread spread{collective, origins * pieces, {}};
  std::vector<std::vector<Rank>> ways(at(network.world_size()));
  ChunkWay way(network, ways, spread);
  for (int origin = 0; origin < origins; ++origin) {
    for (int piece = 0; piece < pieces; ++piece) {
      way.start(origin * pieces + piece, gathers ? origin : collective.root);
      for (int level = levels.count() - 1; level >= 0; --level) {
        for (const Rank holder : way.holders()) {
          spread_level(levels, level, shapes[at(level)], holder, way);
        }
      }
    }
  }
  return spread;
}

std::vector<Schedule> hierarchical(const Task& task, const Effort& effort) {
  const CollectiveKind kind = task.collective.kind;
  if (kind != CollectiveKind::all_gather && kind != CollectiveKind::broadcast) return {};
  const Levels levels(task.network);
  if (levels.count() < 2) return {};
  const auto n = static_cast<double>(task.network.world_size());
  const double block = kind == CollectiveKind::all_gather ? task.size_bytes / n : task.size_bytes;
  // A level is worth a ring where a block takes longer than its latency.
  double beta = 0;
  for (const Edge& edge : task.network.edges()) beta = std::max(beta, edge.beta_s_per_byte);
  std::vector<std::vector<Shape>> variants;
  for (int bits = 0; bits < 1 << levels.count(); ++bits) {
    std::vector<Shape> shapes;
    for (int level = 0; level < levels.count(); ++level) {
      shapes.push_back((bits >> level & 1) != 0 ? Shape::ring : Shape::star);
    }
    variants.push_back(std::move(shapes));
  }
  if (n * n > kMostHierarchicalHops) {  // a million hops each: the two that differ most
    const Shape outer =
        block * beta < levels.alpha_s(levels.count() - 1) / 8 ? Shape::star : Shape::ring;
    std::vector<Shape> shapes(at(levels.count()), outer);
    shapes.front() = Shape::star;
    variants = {shapes};
    if (outer == Shape::ring && levels.count() > 2) {
      shapes.back() = Shape::star;
      variants.push_back(std::move(shapes));
    }
  }
  const double alpha = levels.alpha_s(levels.count() - 1);
  std::vector<int> piece_counts = {1};
  for (const int pieces : {2, 4, 8}) {
    if (block * beta / pieces > alpha / 4 && n * n * pieces <= kMostHierarchicalHops) {
      piece_counts.push_back(pieces);
    }
  }
  std::vector<Schedule> schedules;
  for (const std::vector<Shape>& shapes : variants) {
    const bool rings = std::find(shapes.begin(), shapes.end(), Shape::ring) != shapes.end();
    if (rings && block * beta < alpha / 8) continue;
    for (const int pieces : piece_counts) {
      if (effort.spent() && !schedules.empty()) return schedules;
      std::string name = "hierarchical";
      for (std::size_t level = shapes.size(); level-- > 0;) {
        name += fmt::format(" {}{}", shapes[level] == Shape::ring ? "ring" : "star",
                            levels.sizes()[level]);
      }
      const Spread spread = level_by_level(task.network, task.collective, shapes, pieces);
      schedules.push_back(
          in_order(name, task.network, spread, block / static_cast<double>(pieces)));
    }
  }
  return schedules;
}

}  // namespace chorus::synth
