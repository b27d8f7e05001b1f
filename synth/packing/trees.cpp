#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "base/index.hpp"
#include "chorus/error.hpp"
#include "synth/ordering/predict.hpp"
#include "synth/ordering/timed.hpp"
#include "synth/packing.hpp"
#include "synth/packing/flowing.hpp"
#include "synth/packing/packings.hpp"
#include "synth/packing/rerouting.hpp"

namespace chorus::synth {
namespace {

// Bytes: below, every message costs more than its data. Latencies hide behind the pieces before, so
// that it is the sender's work for a message that counts: a third of a microsecond or so on a GPU.
constexpr double kSmallestPiece = 1 << 12;
// Where processes send. With pieces of 4 KiB all_reduces of 256 KiB and 1 MiB over TCP took 1.2
// times as long (`random:9` by its description, the medians of four pairs of runs).
constexpr double kSmallestOfProcesses = 1 << 14;
// Transfers of a schedule: so many, or so many for each rank. The deeper the trees of many ranks
// are, the more pieces it takes to fill them.
constexpr int kMostTreeTransfers = 60'000;
constexpr int kMostOfARank = 800;
constexpr double kAnyTime = std::numeric_limits<double>::infinity();
constexpr double kManyShare = 1024;  // edges that cross a link: all that flows is timed together

/// Seconds per byte of the longest way from the root, its first hop not counted: what a piece takes
/// before the last rank begins to receive, alone.
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

/// Edges that cross a link or port group, in the mean.
double sharing(const Network& network) {
  double uses = 0;
  for (const Edge& edge : network.edges()) uses += static_cast<double>(edge.resources.size());
  return uses / std::max<double>(1, static_cast<double>(network.resources().size()));
}

/// Into how many pieces the data of each tree is cut, so that filling the trees takes no more than
/// `fill` of the whole time, none `smallest` bytes or less. `both`: combining and spreading at
/// once, where few trees share what they cross with each other all the time.
int pieces(const TreePacking& packing, const Network& network, double size_bytes, double smallest,
           double fill, bool both, double most_transfers) {
  const double of_a_tree = size_bytes / static_cast<double>(packing.trees.size());
  const double whole_s = size_bytes / (packing.rate_gb_s * 1e9);
  const double fill_s =
      both ? time_to_fill(placed(network, packing.trees)) : seconds_to_fill(packing, network);
  const double wanted = of_a_tree * fill_s / (fill * whole_s);
  const double hops =
      static_cast<double>(packing.trees.size()) * std::max(network.world_size() - 1, 1);
  const double most = std::min(of_a_tree / smallest, most_transfers / hops);
  return static_cast<int>(std::max(1.0, std::floor(std::min(std::ceil(wanted), most))));
}

void root_at(Rank root, SpanningTree& tree) {
  Rank below = -1;
  for (Rank rank = root; rank >= 0;) {
    const Rank above = std::exchange(tree.parent[at(rank)], below);
    below = std::exchange(rank, above);
  }
  tree.root = root;
}

/// Of trees that are the same for all ranks, or from one root.
TreePacking packing_of(std::vector<SpanningTree> trees, double s_per_byte) {
  const double rate_gb_s = 1e-9 / std::max(s_per_byte, 1e-18);
  const int count = static_cast<int>(trees.size());
  return {count, std::move(trees), rate_gb_s, rate_gb_s, 0};
}

/// Tries packings of more and fewer trees, pieces and orders; the run that orders them tells how
/// long each takes.
class TreeSchedule {
 public:
  TreeSchedule(Packings& packings, Collective collective, double size_bytes, const Budget& budget)
      : packings_(packings),
        forward_(packings.network(Direction::forward)),
        reversed_(packings.network(Direction::reversed)),
        crowding_(1 + sharing(forward_) / kManyShare),
        collective_(collective),
        size_bytes_(size_bytes),
        smallest_piece_(budget.step_s > 0 ? kSmallestOfProcesses : kSmallestPiece),
        budget_(budget) {}

  std::optional<Schedule> make(bool combines, bool spreads, std::optional<Rank> root) {
    std::optional<Packed> full = packed(combines, spreads, root, {});
    if (!full) return std::nullopt;
    const double best_s = full->least_s(size_bytes_);
    std::vector<Packed> rings;
    for (const int count : {1, 2, 4}) {
      if (root || too_many(count)) break;
      std::optional<Packed> found = ringed(combines, spreads, count, *full);
      if (!found) continue;
      // Where rings are as good as any packing they are all there is to try.
      if (found->least_s(size_bytes_) <= kGoodEnough * best_s) {
        attempt(*found, best_s);
        if (best_ && good_enough(*full)) return taken();
      } else {
        rings.push_back(*std::move(found));
      }
    }
    for (const int trees : std::set<int>{1, 2, 4, 8, full->trees()}) {
      if (trees == full->trees()) {
        if (!attempt(*full, best_s)) break;
      } else if (too_many(trees)) {
        break;
      } else if (auto few = packed(combines, spreads, root, trees)) {
        if (!attempt(*few, best_s)) break;
      }
    }
    refine();
    for (const Packed& around : rings) {
      if (best_ && good_enough(*full)) break;
      attempt(around, best_s);
    }
    return taken();
  }

  /// all_reduce over trees with roots of their own.
  std::optional<Schedule> make_all_reduce() {
    // A few pieces tell which trees hinder each other least: of few trees, in which all that shares
    // a link has the same to carry, the pieces march in step.
    std::vector<Promise> promising;
    double least_s_per_byte = kAnyTime;
    double likely_s = kAnyTime;
    bool around_hubs_alone = false;  // which are shallow: many of them are filled soonest
    // Few trees are packed in no time, and those that load the least are run; of more each number
    // is run before more are packed.
    const std::vector<std::vector<int>> groups = {
        {1, 2, 3, 4, 5, 6, 8}, {12}, {16}, {24}, {32}, {64}, {128}};
    for (const std::vector<int>& counts : groups) {
      const std::vector<Packed> some = promising_of(counts, around_hubs_alone, least_s_per_byte);
      const bool at_limit = least_s_per_byte * size_bytes_ <= kAtLimit * budget_.limit_s;
      const double before_s = likely_s;
      for (const Packed& packed : some) {
        if (const auto seconds = likely(packed)) {
          likely_s = std::min(likely_s, *seconds);
          promising.push_back({*seconds, packed});
        }
        const bool none_is_better = at_limit && good_enough(packed);
        if (budget_.spent() || none_is_better) return finely(promising);
      }
      // More trees load no less than the limit; they may fill the wiring sooner.
      if (!at_limit || counts.back() * forward_.world_size() < kManyHops) continue;
      if (likely_s <= kMoreTrees * before_s) continue;
      if (likely_s < kMostlyFilling * least_s_per_byte * size_bytes_) break;
      if (2 * at(counts.back()) * forward_.edges().size() > kMostTreeEdges) break;
      around_hubs_alone = true;
    }
    return finely(promising);
  }

  /// From `root` over trees that any rank may be the root of, few of which load NICs evenly.
  std::optional<Schedule> make_broadcast(Rank root) {
    std::vector<Promise> promising;
    double least_s_per_byte = kAnyTime;
    for (const int count : {1, 2, 4, 8}) {
      auto found = packings_.spanning(count, TreeShape::without_hubs, budget_);
      if (!found) break;
      for (SpanningTree& tree : found->trees) root_at(root, tree);
      const double s_per_byte = worst_load(placed(forward_, found->trees)) / count;
      if (s_per_byte > kMoreTrees * least_s_per_byte) continue;
      least_s_per_byte = s_per_byte;
      Packed packed{{}, packing_of(std::move(found->trees), s_per_byte), s_per_byte, s_per_byte};
      if (const auto seconds = likely(packed)) promising.push_back({*seconds, std::move(packed)});
      if (budget_.spent()) break;
    }
    return finely(promising);
  }

 private:
  struct Packed {
    std::optional<TreePacking> combine, spread;
    double s_per_byte = 0;        ///< that the most loaded resource is busy
    double limit_s_per_byte = 0;  ///< what no packing beats, as far as it is known
    bool rings = false;

    [[nodiscard]] int trees() const { return (spread ? spread : combine)->trees_per_root; }
    [[nodiscard]] double least_s(double size_bytes) const { return s_per_byte * size_bytes; }
  };

  /// A packing and what it may take in as many pieces as are good.
  struct Promise {
    double likely_s;
    Packed packed;
  };

  /// In few pieces; nothing if that is not worth a try, or not as fast as what is known.
  std::optional<double> likely(const Packed& packed) {
    if (!worth_a_try(packed, packed.limit_s_per_byte * size_bytes_)) return std::nullopt;
    const double give_up_s = coarse_s(packed, known_s());
    const std::optional<double> seconds = run(packed, good_pieces(packed, kCoarse), {}, give_up_s);
    if (!seconds) return std::nullopt;
    return likely_s(packed, *seconds);
  }

  /// The most promising in as many pieces as are good; the last of them has the most trees.
  std::optional<Schedule> finely(const std::vector<Promise>& promising) {
    std::vector<const Promise*> order;
    for (const Promise& one : promising) order.push_back(&one);
    std::ranges::stable_sort(order, {}, [](const Promise* one) { return one->likely_s; });
    if (order.size() > kMostFine) {
      order.resize(kMostFine);
      // What it takes to fill many trees hides what they gain: the most are tried as well.
      const Promise* const most = &promising.back();
      if (std::ranges::find(order, most) == order.end()) order.push_back(most);
    }
    for (const Promise* one : order) {
      const Packed& packed = one->packed;
      if (good_pieces(packed, 1) == good_pieces(packed, kCoarse)) continue;
      attempt(packed, packed.limit_s_per_byte * size_bytes_);
    }
    return taken();
  }

  [[nodiscard]] bool worth_a_try(const Packed& packed, double best_s) const {
    const double least_s = packed.least_s(size_bytes_);
    if (least_s > 1.15 * best_s + kLittleSeconds) return false;
    return least_s < known_s() * kWorthIt;
  }

  /// What few pieces take where as many as are good take `fine_s`: beyond the load all that remains
  /// is the time to fill the trees, the less the smaller the pieces.
  [[nodiscard]] double coarse_s(const Packed& packed, double fine_s) const {
    const double load_s = packed.least_s(size_bytes_);
    return load_s + (fine_s - load_s) * good_pieces(packed, 1) / good_pieces(packed, kCoarse);
  }

  /// What as many pieces as are good are likely to take where few take `coarse_s`: some of what is
  /// beyond the load is the time to fill the trees, and some is what hinders each other.
  [[nodiscard]] double likely_s(const Packed& packed, double coarse_s) const {
    const double load_s = packed.least_s(size_bytes_);
    return load_s +
           (coarse_s - load_s) * std::sqrt(static_cast<double>(good_pieces(packed, kCoarse)) /
                                           good_pieces(packed, 1));
  }

  /// Few trees make few messages, if they come near enough to the time that the best take. False if
  /// no more trees need be tried.
  bool attempt(const Packed& packed, double best_s) {
    if (best_ && budget_.spent()) return false;
    if (!worth_a_try(packed, best_s)) return true;
    // Round a ring all lanes are busy from the first step on, however large the pieces.
    const int num_pieces = good_pieces(packed, 1);
    if (packed.rings) run(packed, 1, {}, known_s());
    if (packed.rings && (num_pieces == 1 || good_enough(packed))) return !good_enough(packed);
    run(packed, num_pieces, {}, known_s());
    return !good_enough(packed);
  }

  std::optional<Schedule> taken() {
    if (!best_) return std::nullopt;
    if (loses_as_pipeline(best_->schedule, budget_.step_s)) {
      return timed(best_->schedule, best_->simulation);
    }
    return std::move(best_->schedule);
  }

  /// Nothing if the budget is spent.
  [[nodiscard]] std::optional<Packed> packed(bool combines, bool spreads, std::optional<Rank> root,
                                             std::optional<int> trees) const {
    Packed packed;
    const auto add = [&](Direction direction, std::optional<TreePacking>& half) {
      half = packings_.trees(direction, root, trees, budget_);
      if (!half) return false;
      packed.s_per_byte += 1 / (half->rate_gb_s * 1e9);
      packed.limit_s_per_byte += 1 / (half->limit_gb_s * 1e9);
      return true;
    };
    if (spreads && !add(Direction::forward, packed.spread)) return std::nullopt;
    if (combines && !add(Direction::reversed, packed.combine)) return std::nullopt;
    return packed;
  }

  /// Round rings, as `full` but for the trees.
  [[nodiscard]] std::optional<Packed> ringed(bool combines, bool spreads, int rings,
                                             const Packed& full) const {
    Packed packed = full;
    packed.rings = true;
    packed.s_per_byte = 0;
    const auto add = [&](Direction direction, std::optional<TreePacking>& half) {
      const std::vector<SpanningTree> trees = packings_.rings(direction, rings, budget_);
      if (trees.empty()) return false;
      const Network& network = packings_.whole(direction);
      const double load = worst_load(placed(network, trees));
      const double rate_gb_s = 1e-9 * static_cast<double>(trees.size()) / std::max(load, 1e-18);
      half = {rings, trees, rate_gb_s, half->limit_gb_s, network.world_size() - 1};
      packed.s_per_byte += 1 / (rate_gb_s * 1e9);
      return true;
    };
    if (spreads && !add(Direction::forward, packed.spread)) return std::nullopt;
    if (combines && !add(Direction::reversed, packed.combine)) return std::nullopt;
    return packed;
  }

  /// Rootless packings of so many trees that may be worth a try; the least load of all that are
  /// known is kept in `least_s_per_byte`. None if there are too many hops, or the budget is spent.
  [[nodiscard]] std::vector<Packed> promising_of(const std::vector<int>& counts,
                                                 bool around_hubs_alone,
                                                 double& least_s_per_byte) const {
    std::vector<Packed> all;
    const auto consider = [&](const Packed& some) {
      const bool less = some.s_per_byte < kMoreTrees * least_s_per_byte;
      // Many fill the wiring sooner than few that load it as little.
      const bool many =
          some.trees() >= kManyTrees && some.s_per_byte <= kNearlyLess * least_s_per_byte;
      least_s_per_byte = std::min(least_s_per_byte, some.s_per_byte);
      if (less || many) all.push_back(some);
    };
    for (const int trees : counts) {
      if (trees > 1 && trees * (forward_.world_size() - 1) > kMostTreeHops) break;
      const std::optional<Packed> around_hubs = rootless(trees, TreeShape::around_hubs);
      if (!around_hubs) break;
      consider(*around_hubs);
      if (around_hubs_alone) continue;
      const std::optional<Packed> without_hubs = rootless(trees, TreeShape::without_hubs);
      if (!without_hubs) break;
      // Deeper trees have to load less.
      if (without_hubs->s_per_byte <= kMoreTrees * around_hubs->s_per_byte) {
        consider(*without_hubs);
      }
    }
    for (Packed& some : all) some.limit_s_per_byte = least_s_per_byte;  // as far as it is known
    return all;
  }

  [[nodiscard]] std::optional<Packed> rootless(int trees, TreeShape shape) const {
    const std::optional<SpanningPacking> found = packings_.spanning(trees, shape, budget_);
    if (!found) return std::nullopt;
    const TreePacking half = packing_of(found->trees, found->seconds_per_byte);
    Packed packed{half, half, found->seconds_per_byte, found->seconds_per_byte};
    apart(packed);
    return packed;
  }

  /// Where one direction of the cables is slower than the other, the way to a root and the way from
  /// it are better not the same.
  void apart(Packed& packed) const {
    // None is taken that does not load a little less, which is impossible near the limit.
    const double limit_s_per_byte = budget_.limit_s / size_bytes_;
    if (packed.s_per_byte * kApart <= limit_s_per_byte) return;
    std::vector<PlacedTree> both = placed(reversed_, packed.combine->trees);
    const std::vector<PlacedTree> spread = placed(forward_, packed.spread->trees);
    both.insert(both.end(), spread.begin(), spread.end());
    if (both.size() * forward_.edges().size() > kMostShared) return;
    if (evenness(both) > 0.9) return;
    // From what is there, and from nothing but the roots.
    std::vector<PlacedTree> anew = both;
    for (PlacedTree& placed : anew) placed.tree.parent.clear();
    both = rerouted(std::move(both), 0, budget_);
    anew = rerouted(std::move(anew), 0, budget_);
    if (both.empty() || anew.empty()) return;
    if (worst_load(anew) < worst_load(both)) both = std::move(anew);
    const double of_a_tree = 1 / static_cast<double>(packed.trees());
    const double s_per_byte = worst_load(both) * of_a_tree;
    if (s_per_byte > kApart * packed.s_per_byte) return;
    packed.s_per_byte = packed.limit_s_per_byte = s_per_byte;
    for (std::size_t i = 0; i < both.size(); ++i) {
      const bool combines = i < packed.combine->trees.size();
      (combines ? packed.combine->trees[i] : packed.spread->trees[i - spread.size()]) =
          both[i].tree;
    }
  }

  /// More than one tree, or ring, from every rank.
  [[nodiscard]] bool too_many(int trees) const {
    const int n = forward_.world_size();
    return trees > 1 && trees * n * (n - 1) > kMostTreeHops;
  }

  /// Of one piece of every tree.
  [[nodiscard]] int hops(const Packed& packed) const {
    const std::size_t trees = (packed.spread ? packed.spread : packed.combine)->trees.size();
    return static_cast<int>(trees) * (forward_.world_size() - 1);
  }

  /// Small ones at once where they are few.
  [[nodiscard]] int good_pieces(const Packed& packed, double part) const {
    const int finely = pieces(packed, kFill / 4);
    return hops(packed) * finely <= kFewTransfers ? finely : pieces(packed, kFill, part);
  }

  /// `part`: of the transfers that are affordable.
  [[nodiscard]] int pieces(const Packed& packed, double fill, double part = 1) const {
    const bool both = packed.spread && packed.combine;
    double transfers = std::max(kMostTreeTransfers, kMostOfARank * forward_.world_size());
    // There and back there are twice as many, which are all simulated.
    if (both) transfers = std::min(kForBoth * transfers, kMostSimulated / 2.0) / crowding_;
    transfers *= part;
    const auto of = [&](const TreePacking& half, const Network& network) {
      return synth::pieces(half, network, size_bytes_, smallest_piece_, fill, both, transfers);
    };
    int most = 1;
    const auto network = [&](Direction direction) -> const Network& {
      return packed.rings ? packings_.whole(direction) : packings_.network(direction);
    };
    if (packed.spread) most = of(*packed.spread, network(Direction::forward));
    if (packed.combine) most = std::max(most, of(*packed.combine, network(Direction::reversed)));
    return most;
  }

  /// The seconds it takes; nothing if the budget is spent, or if they are more than `give_up_s`.
  std::optional<double> run(const Packed& packed, int num_pieces, Ordering ordering,
                            double give_up_s) {
    const TreeFlow flow{collective_, packed.combine ? &*packed.combine : nullptr,
                        packed.spread ? &*packed.spread : nullptr, num_pieces};
    budget_.say(fmt::format("trees: {} per root in {} pieces", packed.trees(), flow.pieces));
    auto run = flowing_order("trees", packings_.topology(), packings_.routes(), flow, ordering,
                             size_bytes_, budget_, give_up_s);
    if (!run) return std::nullopt;
    const double seconds = run->simulation.seconds;
    if (best_ && seconds >= best_->simulation.seconds * kWorthIt) return seconds;
    best_ = std::move(run);
    best_ordering_ = ordering;
    chosen_ = packed;
    return seconds;
  }

  [[nodiscard]] double known_s() const {
    return best_ ? std::min(best_->simulation.seconds, budget_.useless_s) : budget_.useless_s;
  }

  [[nodiscard]] bool good_enough(const Packed& packed) const {
    const double enough_s =
        std::max(kGoodEnough * packed.limit_s_per_byte * size_bytes_, kAtLimit * budget_.limit_s);
    return best_ && best_->simulation.seconds <= enough_s;
  }

  /// Other orders and smaller pieces.
  void refine() {
    if (!chosen_ || hops(*chosen_) > kMostTreeHops) return;
    const Packed packed = *chosen_;
    const bool sums_alone = packed.combine && !packed.spread;
    const Ordering orderings[] = {
        {Urgency::piece, true}, {Urgency::round, true}, {Urgency::way, false}};
    for (const Ordering& ordering : std::span(orderings).subspan(sums_alone ? 0 : 1)) {
      if (budget_.spent() || good_enough(packed)) return;
      run(packed, pieces(packed, kFill), ordering, known_s());
    }
    const int more = pieces(packed, kFill / 4);
    if (more > pieces(packed, kFill) && !budget_.spent() && !good_enough(packed)) {
      run(packed, more, best_ordering_, known_s());
    }
  }

  static constexpr double kFill = 0.02;        // of the whole time, to fill the trees
  static constexpr double kForBoth = 2;        // lanes there and lanes back: more pieces fill them
  static constexpr double kCoarse = 0.25;      // of the transfers
  static constexpr int kFewTransfers = 6'000;  // small pieces at once, without trying large ones
  static constexpr double kLittleSeconds = 20e-6;  // latencies count as much
  static constexpr double kWorthIt = 0.995;        // of the time: what more messages must save
  static constexpr std::size_t kMostShared = 1'000'000;  // trees times edges
  static constexpr double kGoodEnough = 1.02;            // times the limit: look no further
  static constexpr double kAtLimit = 1.005;
  // Times the load of fewer trees: what more of them have to reach, and what many may have.
  static constexpr double kMoreTrees = 0.99, kNearlyLess = 1.06;
  static constexpr int kManyTrees = 8;
  static constexpr double kApart = 0.97;  // times the load of trees that are the same both ways
  static constexpr int kManyHops = 4096;  // of all trees: to pack more and run them takes long
  static constexpr std::size_t kMostTreeEdges = 8'000'000;  // trees times edges: of more likewise
  static constexpr double kMostlyFilling = 1.5;  // times the load: what is beyond, more may save
  static constexpr std::size_t kMostFine = 3;    // packings that are run in small pieces
  static constexpr int kMostTreeHops = 60'000;   // of all trees together

  Packings& packings_;
  const Network& forward_;
  const Network& reversed_;
  double
      crowding_;  // how many times as long it takes to let a flow run as where edges share little
  Collective collective_;
  double size_bytes_;
  double smallest_piece_;  // bytes
  const Budget& budget_;
  std::optional<OrderedFlow> best_;
  Ordering best_ordering_;
  std::optional<Packed> chosen_;  // of best_
};

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

std::optional<Schedule> trees(Packings& packings, Collective collective, double size_bytes,
                              const Budget& budget) {
  TreeSchedule schedule(packings, collective, size_bytes, budget);
  switch (collective.kind) {
    case CollectiveKind::all_gather:
      return schedule.make(false, true, std::nullopt);
    case CollectiveKind::reduce_scatter:
      return schedule.make(true, false, std::nullopt);
    case CollectiveKind::all_reduce:
      return schedule.make_all_reduce();
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

std::optional<Schedule> broadcast_over_spanning_trees(Packings& packings, Rank root,
                                                      double size_bytes, const Budget& budget) {
  TreeSchedule schedule(packings, {CollectiveKind::broadcast, root}, size_bytes, budget);
  return schedule.make_broadcast(root);
}

std::optional<Schedule> trees(const Topology& topology, Collective collective, double size_bytes,
                              const Budget& budget, const PackingOptions& options) {
  Packings packings(topology, options);
  return trees(packings, collective, size_bytes, budget);
}

}  // namespace chorus::synth
