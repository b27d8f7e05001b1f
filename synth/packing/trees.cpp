#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "chorus/error.hpp"
#include "synth/packing.hpp"
#include "synth/spread.hpp"

namespace chorus::synth {
namespace {

constexpr double kFill = 0.02;              // of the whole time, to fill a tree
constexpr double kSmallestPiece = 1 << 14;  // bytes: below, every message costs more than its data
constexpr int kMostTransfers = 60'000;

std::size_t at(int index) { return static_cast<std::size_t>(index); }

/// Ranks of a tree, parents first.
std::vector<Rank> from_root(const SpanningTree& tree) {
  std::vector<std::vector<Rank>> children(tree.parent.size());
  for (std::size_t rank = 0; rank < tree.parent.size(); ++rank) {
    if (tree.parent[rank] >= 0) {
      children[at(tree.parent[rank])].push_back(static_cast<Rank>(rank));
    }
  }
  std::vector<Rank> order = {tree.root};
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::vector<Rank>& below = children[at(order[i])];
    order.insert(order.end(), below.begin(), below.end());
  }
  return order;
}

/// Seconds per byte of the longest way from the root, its first hop not counted: what a piece takes
/// before the last rank begins to receive.
double seconds_to_fill(const TreePacking& packing, const Network& network) {
  double longest = 0;
  for (const SpanningTree& tree : packing.trees) {
    std::vector<double> reached(tree.parent.size(), 0);
    for (const Rank rank : from_root(tree)) {
      const Rank parent = tree.parent[at(rank)];
      if (parent < 0 || parent == tree.root) continue;
      const Edge& edge = network.edges()[at(*network.edge(parent, rank))];
      reached[at(rank)] = reached[at(parent)] + edge.beta_s_per_byte;
      longest = std::max(longest, reached[at(rank)]);
    }
  }
  return longest;
}

/// Into how many pieces the data of each tree is cut.
int pieces(const TreePacking& packing, const Network& network, double size_bytes) {
  const double of_a_tree = size_bytes / static_cast<double>(packing.trees.size());
  const double whole_s = size_bytes / (packing.rate_gb_s * 1e9);
  const double wanted = of_a_tree * seconds_to_fill(packing, network) / (kFill * whole_s);
  const double hops =
      static_cast<double>(packing.trees.size()) * std::max(network.world_size() - 1, 1);
  const double most = std::min(of_a_tree / kSmallestPiece, kMostTransfers / hops);
  return static_cast<int>(std::max(1.0, std::floor(std::min(std::ceil(wanted), most))));
}

/// Chunks: the pieces of a root's trees, the first piece of each tree before the second of any.
Spread spread_over(const TreePacking& packing, Collective collective, int num_pieces) {
  const int of_a_root = packing.trees_per_root * num_pieces;
  Spread spread{collective, static_cast<int>(packing.trees.size()) * num_pieces, {}};
  for (std::size_t index = 0; index < packing.trees.size(); ++index) {
    const SpanningTree& tree = packing.trees[index];
    const auto number = static_cast<int>(index);
    const int first = number / packing.trees_per_root * of_a_root + number % packing.trees_per_root;
    for (const Rank rank : from_root(tree)) {
      if (rank == tree.root) continue;
      for (int piece = 0; piece < num_pieces; ++piece) {
        spread.hops.push_back(
            {tree.parent[at(rank)], rank, first + piece * packing.trees_per_root});
      }
    }
  }
  return spread;
}

class TreeSchedules {
 public:
  TreeSchedules(const Topology& topology, double size_bytes, const Effort& effort,
                std::string_view name)
      : topology_(topology), size_bytes_(size_bytes), effort_(effort), name_(name) {}

  std::optional<Schedule> spreading(std::optional<Rank> root) {
    return one_way(Direction::forward, root);
  }
  std::optional<Schedule> combining(std::optional<Rank> root) {
    std::optional<Schedule> spread = one_way(Direction::reversed, root);
    if (!spread) return std::nullopt;
    return mirrored(*spread);
  }

  std::optional<Schedule> both(std::optional<Rank> root) {
    const auto there = pack_trees(topology_, Direction::forward, {.root = root}, effort_);
    if (!there) return std::nullopt;
    const auto back = pack_trees(topology_, Direction::reversed,
                                 {.root = root, .trees = there->trees_per_root}, effort_);
    if (!back) return std::nullopt;
    const Network forward(topology_, Direction::forward);
    const Network reversed(topology_, Direction::reversed);
    const int num_pieces =
        std::max(pieces(*there, forward, size_bytes_), pieces(*back, reversed, size_bytes_));
    return all_reduce_of(mirrored(ordered(*back, reversed, root, num_pieces)),
                         ordered(*there, forward, root, num_pieces));
  }

 private:
  std::optional<Schedule> one_way(Direction direction, std::optional<Rank> root) {
    const auto packing = pack_trees(topology_, direction, {.root = root}, effort_);
    if (!packing) return std::nullopt;
    const Network network(topology_, direction);
    return ordered(*packing, network, root, pieces(*packing, network, size_bytes_));
  }

  [[nodiscard]] Schedule ordered(const TreePacking& packing, const Network& network,
                                 std::optional<Rank> root, int num_pieces) const {
    const Collective collective = root ? Collective{CollectiveKind::broadcast, *root}
                                       : Collective{CollectiveKind::all_gather};
    const Spread spread = spread_over(packing, collective, num_pieces);
    effort_.say(fmt::format("{}: ordering {} hops", name_, spread.hops.size()));
    return in_order(name_, network, spread, size_bytes_ / spread.num_chunks);
  }

  const Topology& topology_;
  double size_bytes_;
  const Effort& effort_;
  std::string_view name_;
};

}  // namespace

std::optional<Schedule> trees(const Topology& topology, Collective collective, double size_bytes,
                              const Effort& effort, Decomposition decomposition) {
  const bool blink = decomposition == Decomposition::blink;
  TreeSchedules make(topology, size_bytes, effort, blink ? "blink" : "trees");
  switch (collective.kind) {
    case CollectiveKind::all_gather:
      return make.spreading(std::nullopt);
    case CollectiveKind::reduce_scatter:
      return make.combining(std::nullopt);
    case CollectiveKind::all_reduce:
      return make.both(blink ? std::optional<Rank>(0) : std::nullopt);
    case CollectiveKind::broadcast:
      return make.spreading(collective.root);
    case CollectiveKind::reduce:
      return make.combining(collective.root);
    default:
      throw InputError(
          "packed trees make all_gather, reduce_scatter, all_reduce, broadcast and reduce; ask "
          "another synthesizer for the other collectives");
  }
}

}  // namespace chorus::synth
