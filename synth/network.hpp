// A topology as the synthesizers see it: ranks, the ways between them, and what those ways share.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "chorus/schedule.hpp"
#include "chorus/topology.hpp"
#include "model/schedule/symmetry.hpp"

namespace chorus::synth {

enum class Direction { forward, reversed };

/// A link or port group of the topology that limits how fast data moves.
struct Resource {
  std::string name;            ///< for people: "host0/gpu1 -> host0/nvswitch", "host0/nic0 out"
  double beta_s_per_byte = 0;  ///< positive: what never limits is left out
  double message_s = 0;        ///< of the port group, per message and crossing
};

/// The resource that a link (`is_group` false) or port group of `topology` is, by its index.
[[nodiscard]] Resource resource_of(const Topology& topology, bool is_group, int index);

/// A way from one rank to another that passes through no node of a third rank: one hop of a
/// schedule. It is the route that cost() and simulate() use for the pair.
struct Edge {
  Rank src = 0;
  Rank dst = 0;
  double alpha_s = 0;
  double beta_s_per_byte = 0;  ///< alone on the edge: the worst of its resources; 0: no limit
  std::vector<int> resources;  ///< ascending; one that is crossed twice is named twice
};

/// The hops a schedule may use. Plain data, deterministic: equal topologies give equal networks.
///
/// Reversed: every edge turned round (resources kept), so that a schedule that spreads over it is,
/// read backwards, one that combines over the topology.
///
/// Folded (synth/repeated_network.hpp): edges leave the ranks of cell 0 alone, and each stands for
/// its images under every move of the cells.
class Network {
 public:
  explicit Network(const Topology& topology, Direction direction = Direction::forward);
  Network(int world_size, std::vector<Edge> edges, std::vector<Resource> resources);
  Network(Cells cells, std::vector<Edge> edges, std::vector<Resource> resources);

  /// Every edge turned round, resources kept.
  [[nodiscard]] Network reversed() const;
  /// The edges that `keep`, by index, is not 0 for; resources kept.
  [[nodiscard]] Network restricted_to(std::span<const char> keep) const;

  [[nodiscard]] int world_size() const { return world_size_; }
  /// One cell of all ranks unless the network is folded.
  [[nodiscard]] const Cells& cells() const { return cells_; }
  [[nodiscard]] bool folded() const { return cells_.count() > 1; }
  /// Sorted by (src, dst).
  [[nodiscard]] const std::vector<Edge>& edges() const { return edges_; }
  /// Where each of edges() leads, side by side for those who look at all of them.
  [[nodiscard]] std::span<const Rank> destinations() const { return destinations_; }
  [[nodiscard]] const std::vector<Resource>& resources() const { return resources_; }
  /// Indices into edges() of the edges that leave (enter) `rank`, ascending.
  [[nodiscard]] std::span<const int> out(Rank rank) const;
  [[nodiscard]] std::span<const int> in(Rank rank) const;
  /// The edge from `src` to `dst`, or that of which it is an image, if there is one.
  [[nodiscard]] std::optional<int> edge(Rank src, Rank dst) const;

 private:
  void sort_edges();

  int world_size_ = 0;
  Cells cells_;
  std::vector<Edge> edges_;
  std::vector<Rank> destinations_;
  std::vector<Resource> resources_;
  std::vector<int> out_, in_;                // edge indices, grouped by rank
  std::vector<std::size_t> out_at_, in_at_;  // where each rank's begin: [world_size + 1]
};

/// The most edges that leave any rank.
[[nodiscard]] int widest(const Network& network);

/// About `edges_per_rank` of the edges that leave each rank, where there are more: as many of each
/// number of resources that an edge crosses (its distance), the same offsets between ranks from
/// every rank, and where an edge leads there the one that leads back. So trees find near ranks as
/// well as far ones. All of them where none is asked for, or the ranks would not be connected.
[[nodiscard]] Network thinned(Network network, std::optional<int> edges_per_rank);

/// True if data from any rank can reach any other.
[[nodiscard]] bool connected(const Network& network);

/// Throws TopologyError naming the ranks that data from `root` cannot reach (or, if all can be
/// reached from rank 0, those that cannot reach it), and the links that would have to exist.
void require_connected(const Topology& topology, const Network& network);

}  // namespace chorus::synth
