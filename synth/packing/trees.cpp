#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "base/index.hpp"
#include "chorus/error.hpp"
#include "synth/packing.hpp"
#include "synth/packing/flowing.hpp"
#include "synth/packing/rerouting.hpp"

namespace chorus::synth {
namespace {

constexpr double kSmallestPiece = 1 << 14;  // bytes: below, every message costs more than its data
constexpr int kMostTransfers = 60'000;

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

/// Into how many pieces the data of each tree is cut, so that filling the trees takes no more than
/// `fill` of the whole time.
int pieces(const TreePacking& packing, const Network& network, double size_bytes, double fill) {
  const double of_a_tree = size_bytes / static_cast<double>(packing.trees.size());
  const double whole_s = size_bytes / (packing.rate_gb_s * 1e9);
  const double wanted = of_a_tree * seconds_to_fill(packing, network) / (fill * whole_s);
  const double hops =
      static_cast<double>(packing.trees.size()) * std::max(network.world_size() - 1, 1);
  const double most = std::min(of_a_tree / kSmallestPiece, kMostTransfers / hops);
  return static_cast<int>(std::max(1.0, std::floor(std::min(std::ceil(wanted), most))));
}

/// Tries packings of more and fewer trees, pieces and orders; the run that orders them tells how
/// long each takes.
class TreeSchedule {
 public:
  TreeSchedule(const Topology& topology, Collective collective, double size_bytes,
               const Effort& effort, std::string_view name, bool by_prices_alone)
      : topology_(topology),
        forward_(topology, Direction::forward),
        reversed_(topology, Direction::reversed),
        routes_(topology),
        collective_(collective),
        size_bytes_(size_bytes),
        effort_(effort),
        name_(name),
        by_prices_alone_(by_prices_alone) {}

  std::optional<Schedule> make(bool combines, bool spreads, std::optional<Rank> root) {
    Packed full;
    if (!pack(full, combines, spreads, {.root = root})) return std::nullopt;
    // Few trees make few messages, if they come near enough to the limit.
    std::set<int> numbers = {1, 2, 4, 8, full.trees()};
    const double enough_s = 1.15 * full.least_s(size_bytes_) + kLittleSeconds;
    std::optional<Packed> chosen;
    for (const int trees : numbers) {
      if (best_ && effort_.spent()) break;
      Packed packed = full;
      if (trees != full.trees() &&
          !pack(packed, combines, spreads, {.root = root, .trees = trees})) {
        continue;
      }
      const double least_s = packed.least_s(size_bytes_);
      if (least_s > enough_s || (best_ && least_s >= best_->seconds * kWorthIt)) continue;
      const int finely = pieces(packed, kFill / 4);
      const bool cheap = hops(packed) * finely <= kFewTransfers;
      const int num_pieces = cheap ? finely : pieces(packed, kFill);
      bool better = run(packed, num_pieces, {});
      if (combines && run(packed, num_pieces, {Urgency::piece, true})) better = true;
      if (better) chosen = packed;
      if (good_enough(packed)) break;
    }
    if (chosen) refine(*chosen);
    if (!best_) return std::nullopt;
    return std::move(best_->schedule);
  }

 private:
  struct Packed {
    std::optional<TreePacking> combine, spread;
    /// Seconds per byte when both load the network at the same time; 0 if one follows the other.
    double together_s_per_byte = 0;

    [[nodiscard]] int trees() const { return (spread ? spread : combine)->trees_per_root; }
    [[nodiscard]] double limit_s(double size_bytes) const {
      double seconds = 0.9 * together_s_per_byte * size_bytes;  // how much better is not known
      if (seconds > 0) return seconds;
      if (combine) seconds += size_bytes / (combine->limit_gb_s * 1e9);
      if (spread) seconds += size_bytes / (spread->limit_gb_s * 1e9);
      return seconds;
    }
    [[nodiscard]] double least_s(double size_bytes) const {
      double seconds = together_s_per_byte * size_bytes;
      if (seconds > 0) return seconds;
      if (combine) seconds += size_bytes / (combine->rate_gb_s * 1e9);
      if (spread) seconds += size_bytes / (spread->rate_gb_s * 1e9);
      return seconds;
    }
  };

  bool pack(Packed& packed, bool combines, bool spreads, PackingOptions options) const {
    options.by_prices_alone = by_prices_alone_;
    if (spreads) {
      packed.spread = pack_trees(topology_, Direction::forward, options, effort_);
      if (!packed.spread) return false;
      options.trees = packed.spread->trees_per_root;  // both halves have the same chunks
    }
    if (combines) packed.combine = pack_trees(topology_, Direction::reversed, options, effort_);
    if (combines && !packed.combine) return false;
    if (combines && spreads) share(packed);
    return true;
  }

  /// While some pieces are still on their way to the roots others already come back: trees that
  /// each use the whole network are not the best for both at once where its nodes differ.
  void share(Packed& packed) const {
    std::vector<PlacedTree> both = placed(reversed_, packed.combine->trees);
    const std::vector<PlacedTree> spread = placed(forward_, packed.spread->trees);
    both.insert(both.end(), spread.begin(), spread.end());
    if (both.size() * forward_.edges().size() > kMostShared) return;
    if (evenness(both) > 0.9) return;
    both = rerouted(std::move(both), 0, effort_);
    if (both.empty()) return;
    const double of_a_tree = 1 / static_cast<double>(packed.spread->trees.size());
    const double seconds_per_byte = worst_load(both) * of_a_tree;
    if (seconds_per_byte > 0.97 * packed.least_s(1)) return;
    packed.together_s_per_byte = seconds_per_byte;
    for (std::size_t i = 0; i < both.size(); ++i) {
      const bool combines = i < packed.combine->trees.size();
      (combines ? packed.combine->trees[i] : packed.spread->trees[i - spread.size()]) =
          both[i].tree;
    }
  }

  /// Of one piece of every tree.
  [[nodiscard]] int hops(const Packed& packed) const {
    const std::size_t trees = (packed.spread ? packed.spread : packed.combine)->trees.size();
    return static_cast<int>(trees) * (forward_.world_size() - 1);
  }

  [[nodiscard]] int pieces(const Packed& packed, double fill) const {
    int most = 1;
    if (packed.spread) most = synth::pieces(*packed.spread, forward_, size_bytes_, fill);
    if (packed.combine) {
      most = std::max(most, synth::pieces(*packed.combine, reversed_, size_bytes_, fill));
    }
    return most;
  }

  /// True if that is the best so far.
  bool run(const Packed& packed, int num_pieces, Ordering ordering) {
    const TreeFlow flow{collective_, packed.combine ? &*packed.combine : nullptr,
                        packed.spread ? &*packed.spread : nullptr, num_pieces};
    effort_.say(
        fmt::format("{}: {} trees per root in {} pieces", name_, packed.trees(), flow.pieces));
    auto run = flowing_order(name_, topology_, routes_, flow, ordering, size_bytes_, effort_);
    if (!run || (best_ && run->seconds >= best_->seconds * kWorthIt)) return false;
    best_ = std::move(run);
    best_ordering_ = ordering;
    return true;
  }

  [[nodiscard]] bool good_enough(const Packed& packed) const {
    return best_ && best_->seconds <= kGoodEnough * packed.limit_s(size_bytes_);
  }

  /// Other orders and smaller pieces.
  void refine(const Packed& packed) {
    const Ordering orderings[] = {{Urgency::round, true}, {Urgency::way, false}};
    for (const Ordering& ordering : orderings) {
      if (effort_.spent() || good_enough(packed)) return;
      run(packed, pieces(packed, kFill), ordering);
    }
    const int more = pieces(packed, kFill / 4);
    if (more > pieces(packed, kFill) && !effort_.spent() && !good_enough(packed)) {
      run(packed, more, best_ordering_);
    }
  }

  static constexpr double kFill = 0.02;        // of the whole time, to fill the trees
  static constexpr int kFewTransfers = 6'000;  // small pieces at once, without trying large ones
  static constexpr double kLittleSeconds = 20e-6;  // latencies count as much
  static constexpr double kWorthIt = 0.995;        // of the time: what more messages must save
  static constexpr std::size_t kMostShared = 1'000'000;  // trees times edges
  static constexpr double kGoodEnough = 1.02;            // times the limit: look no further

  const Topology& topology_;
  const Network forward_, reversed_;
  const Routes routes_;
  Collective collective_;
  double size_bytes_;
  const Effort& effort_;
  std::string_view name_;
  bool by_prices_alone_;
  std::optional<OrderedFlow> best_;
  Ordering best_ordering_;
};

/// The rank whose own links carry most, in the direction in which they carry less: what goes
/// through one rank can be no faster. The first of several.
Rank best_connected(const Topology& topology) {
  std::vector<double> in(topology.nodes.size()), out(topology.nodes.size());
  for (const Topology::Link& link : topology.links) {
    out[at(link.src)] += 1 / link.beta_s_per_byte;
    in[at(link.dst)] += 1 / link.beta_s_per_byte;
  }
  Rank best = 0;
  double most = 0;
  for (Rank rank = 0; rank < topology.world_size(); ++rank) {
    const std::size_t node = at(topology.rank_nodes[at(rank)]);
    const double carries = std::min(in[node], out[node]);
    if (carries <= most * (1 + 1e-9)) continue;
    best = rank;
    most = carries;
  }
  return best;
}

}  // namespace

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

std::optional<Schedule> trees(const Topology& topology, Collective collective, double size_bytes,
                              const Effort& effort, Decomposition decomposition,
                              bool by_prices_alone) {
  const bool blink = decomposition == Decomposition::blink;
  TreeSchedule schedule(topology, collective, size_bytes, effort, blink ? "blink" : "trees",
                        by_prices_alone);
  switch (collective.kind) {
    case CollectiveKind::all_gather:
      return schedule.make(false, true, std::nullopt);
    case CollectiveKind::reduce_scatter:
      return schedule.make(true, false, std::nullopt);
    case CollectiveKind::all_reduce:
      return schedule.make(true, true,
                           blink ? std::optional(best_connected(topology)) : std::nullopt);
    case CollectiveKind::broadcast:
      return schedule.make(false, true, collective.root);
    case CollectiveKind::reduce:
      return schedule.make(true, false, collective.root);
    default:
      throw InputError(
          "packed trees make all_gather, reduce_scatter, all_reduce, broadcast and reduce; ask "
          "another synthesizer for the other collectives");
  }
}

}  // namespace chorus::synth
