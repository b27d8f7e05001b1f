// A topology as the bounds see it: capacities instead of betas, nodes instead of ranks.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "chorus/topology.hpp"
#include "model/bounds/bounds.hpp"
#include "model/price/least_ratio.hpp"
#include "model/schedule/automorphism.hpp"

namespace chorus::bounds {

constexpr int kMaxRounds = 500;  ///< of cutting planes; a few dozen are enough in practice
constexpr double kNoLimit = std::numeric_limits<double>::infinity();

enum class Direction { forward, reversed };

using Side = std::vector<char>;  ///< by node: which side of a cut it is on
/// The other side.
[[nodiscard]] Side turned(Side side);

/// Capacities in GB/s. Arc numbers (= link numbers) and group numbers are the topology's, nodes are
/// those of its Ways. A terminal is a node with at least one rank on it.
struct Network {
  using Arc = CapacityArc;  ///< capacity: no more than that of any of its groups
  struct Group {
    std::vector<int> arcs;  ///< sorted; an arc named twice is crossed once
    double capacity = 0;
  };

  /// Reversed: every link turned round, so that combining towards a rank becomes spreading from it.
  Network(const Topology& topology, Direction direction);

  [[nodiscard]] int num_nodes() const { return static_cast<int>(ranks_on.size()); }
  [[nodiscard]] bool is_terminal(int node) const {
    return !ranks_on[static_cast<std::size_t>(node)].empty();
  }
  /// Ranks on a node, as a weight.
  [[nodiscard]] double weight(int node) const {
    return static_cast<double>(ranks_on[static_cast<std::size_t>(node)].size());
  }
  /// True if every switch can pass on at full rate all that it can take in, and no port group
  /// couples links: then cuts of the plain capacities tell the whole truth.
  [[nodiscard]] bool plain() const;
  /// Capacity of the arcs from nodes with side != 0 to nodes with side == 0. Arcs of one group
  /// count for no more than the group (an arc in several groups counts for the first).
  [[nodiscard]] double crossing(const std::vector<char>& side) const;
  [[nodiscard]] double crossing(const std::vector<int>& arcs) const;
  [[nodiscard]] std::vector<int> arcs_across(const std::vector<char>& side) const;
  /// The image of `node` under an automorphism of the topology.
  [[nodiscard]] int moved(int node, const Automorphism& automorphism) const;

  const Topology& topology;
  Direction direction;
  std::vector<Arc> arcs;
  std::vector<Group> groups;
  std::vector<int> node_of;                ///< by node: the topology's
  std::vector<int> arriving;               ///< by node of the topology: see Ways
  std::vector<std::vector<int>> ranks_on;  ///< by node
  std::vector<int> terminals;              ///< ascending
  /// Of every set of terminals that the wiring makes alike, the first. All terminals where nothing
  /// repeats itself or there are few: what limits one limits its counterparts.
  std::vector<int> representatives;
  std::optional<Repetition> repetition;  ///< what the representatives stand for; none: all
  double total = 0;                      ///< of all real capacities: above every real rate
  /// Capacity that stands for "no limit" (beta 0): far above everything real.
  double unlimited = 0;
};

/// A rate in GB/s and what limits it.
struct Rate {
  double gb_s = 0;
  std::string method = {};
  bool tight = true;
  std::vector<char> side = {};   ///< by node; empty if the limit is no single cut
  std::vector<int> arcs = {};    ///< that cross the cut, or that limit together
  std::vector<int> groups = {};  ///< that limit
  std::string words = {};        ///< begins the description; empty: made from `side` and `arcs`
};

/// The largest x at which every terminal with a positive weight in `sources` can spread weight·x to
/// all terminals at once, nobody but terminals copying. `sources`: by node.
///
/// Exact: the smallest B(S)/w(S) over node sets S that leave a terminal out (Edmonds 1973; Bang-
/// Jensen, Frank and Jackson 1995 for the switches), found by maximum flows.
[[nodiscard]] Rate spread_rate(const Network& network, const std::vector<double>& sources);

/// The largest algbw that the limits of all-reduce allow: the least cut between two terminals, and
/// the volume that must leave and enter the parts of any partition that was looked at.
[[nodiscard]] Rate all_reduce_rate(const Network& network);
/// The least cut between two terminals alone: what switches that combine and copy cannot beat.
[[nodiscard]] Rate all_reduce_cut_rate(const Network& network);

/// The largest z at which every terminal can send weight·weight'·z to every other at once; of large
/// networks a limit near it (exchange.hpp).
[[nodiscard]] Rate exchange_rate(const Network& network);

/// The largest z at which the root's node can send weight·z to every other terminal at once.
[[nodiscard]] Rate scatter_rate(const Network& network, int root_node);

/// The least alpha of a hop from one terminal to another: before it no byte has moved.
[[nodiscard]] double least_hop_s(const Network& network);

/// What crosses each natural cut, both ways; for what combines and spreads also the volume that
/// moves between the parts of natural_partitions(). Forward networks.
[[nodiscard]] std::vector<Bound::Crossing> crossings(const Network& network, bool combines,
                                                     bool spreads);

/// What the cells of each level of the repetition must cross to leave (or to be entered): the
/// nodes on the source's side of the least cut around the first. None without repetition.
[[nodiscard]] std::vector<std::vector<char>> block_sides(const Network& network);

/// The limit in words: "into gpu0: 6 nvlink, 150 GB/s".
[[nodiscard]] std::string describe(const Network& network, const Rate& rate);

}  // namespace chorus::bounds
