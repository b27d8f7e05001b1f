// Prices and times schedules on a topology.
#pragma once

#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "chorus/schedule.hpp"
#include "chorus/topology.hpp"

namespace chorus {

/// The way from one rank to another.
struct Route {
  std::vector<int> path;  ///< links in order; empty if not connected, or on one node
  double alpha_s = 0;     ///< sum along the path
  bool connected = false;
  bool relayed = false;  ///< passes through nodes of other ranks, or third hosts
};

/// Finds the routes that Routes keeps, one source at a time: for who needs few of many.
class RouteFinder {
 public:
  explicit RouteFinder(const Topology& topology);  ///< keeps a reference
  ~RouteFinder();

  [[nodiscard]] std::vector<Route> from(Rank src) const;  ///< by destination

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Paths between ranks, computed once per topology.
///
/// The route of (src, dst) is the path of least alpha, then most bandwidth, then fewest links,
/// whose inner nodes carry no rank and lie in no third host; only where none exists may it pass
/// through those, too. Between ranks of one host it is one inside the host wherever there is one,
/// however fast its adapters are: so do the transports, and libraries that schedules are exported
/// to. Equal topologies give equal routes.
class Routes {
 public:
  explicit Routes(const Topology& topology);

  /// Links from rank src to rank dst, in order; empty if they are not connected (or equal, or on
  /// one node).
  [[nodiscard]] const std::vector<int>& path(Rank src, Rank dst) const;
  [[nodiscard]] bool connected(Rank src, Rank dst) const;
  /// Sum of alpha along the path, seconds.
  [[nodiscard]] double alpha_s(Rank src, Rank dst) const;
  /// By src · world size + dst.
  [[nodiscard]] const std::vector<Route>& all() const { return routes_; }

 private:
  [[nodiscard]] std::size_t index(Rank src, Rank dst) const;

  int world_size_ = 0;
  std::vector<Route> routes_;  // [src · world_size + dst]
};

/// Bytes of one chunk of `schedule` when the whole collective has `size_bytes`.
///
/// `size_bytes` counts as PlanEntry does, M below, with C = num_chunks and n = world_size:
///
///   all_reduce, reduce, broadcast         M is the buffer of one rank             chunk = M / C
///   all_gather, gather                    M is all n blocks, the output           chunk = M / C
///   reduce_scatter, scatter               M is all n blocks, the input            chunk = M / C
///   all_to_all                            M is one rank's input, n blocks of      chunk = M·n / C
///                                         M/n each, n·n blocks in all
///   barrier                               no bytes                                chunk = 0
[[nodiscard]] double chunk_bytes(const Schedule& schedule, double size_bytes);

/// The port groups that each link belongs to: indices into topology.port_groups, by link.
[[nodiscard]] std::vector<std::vector<int>> port_groups_of_links(const Topology& topology);

/// Throws TopologyError if `schedule` is for another number of ranks than `topology` has, or sends
/// between two ranks that no path connects (naming them).
void require_routes(const Schedule& schedule, const Topology& topology, const Routes& routes);

/// Predicted seconds of one collective: per step the longest alpha of its routes plus the bytes on
/// its most loaded link or port group, summed over the steps (SCCL's cost, with port groups). A
/// chunk that crosses two links of one port group loads it twice. Between ranks on one node data
/// moves for nothing.
struct Cost {
  double alpha_s = 0;          ///< sum over steps
  double beta_s_per_byte = 0;  ///< seconds per byte of size_bytes, sum over steps
  [[nodiscard]] double seconds(double size_bytes) const {
    return alpha_s + beta_s_per_byte * size_bytes;
  }
};
/// Throws TopologyError as require_routes() does.
[[nodiscard]] Cost cost(const Schedule& schedule, const Topology& topology, const Routes& routes);

/// One transfer as it happened in a simulation.
struct TimelineEntry {
  int step = 0;
  Transfer transfer;
  double begin_s = 0;
  double end_s = 0;

  bool operator==(const TimelineEntry&) const = default;
};

struct Simulation {
  double seconds = 0;                   ///< when the last transfer ends
  std::vector<TimelineEntry> timeline;  ///< in order of begin_s, ties by schedule order
  /// Per topology link, how long at least one transfer's bytes were crossing it.
  std::vector<double> link_busy_s;
};

/// Discrete-event replay: a transfer begins when its source holds what it sends (a destination has
/// slots for what comes before it can be folded), takes its route's alpha, and
/// then shares every link and port group of its route fairly (max-min) with the other transfers
/// under way. No step barrier: a rank holds a chunk as of some step when everything that earlier
/// steps bring it of that chunk has arrived. Transfers with the same source, destination and action
/// are a lane: they flow one after the other in the schedule's order, while their alphas overlap,
/// so that many small chunks make a pipeline. Chunks of one step in one lane that follow
/// each other are one message.
///
/// While more than 1000 transfers are under way, those that end within a small part of the time
/// that one takes (1e-4, and more the more there are) get new rates together.
///
/// Alone on its route, a transfer of s bytes takes alpha plus s times the worst beta of its links
/// and port groups; between ranks on one node, nothing. Same input, same bits. Throws TopologyError
/// as require_routes() does.
///
/// Once it is certain that it takes longer than `give_up_s` the simulation ends: `seconds` is
/// infinite then, and the rest empty.
[[nodiscard]] Simulation simulate(const Schedule& schedule, const Topology& topology,
                                  const Routes& routes, double size_bytes,
                                  double give_up_s = std::numeric_limits<double>::infinity());

/// Its seconds, in half the time or less where many transfers are under way: those that end within
/// a third of the time that one takes get new rates together. Mostly 1 % off; up to 30 % where what
/// holds a schedule up depends on the order in which transfers end.
[[nodiscard]] double roughly_simulated_seconds(const Schedule& schedule, const Topology& topology,
                                               const Routes& routes, double size_bytes);

/// Gives an index into a list of routes.
using RouteOf = std::function<std::size_t(Rank src, Rank dst)>;
/// The same for the transfers that `schedule` names, whatever its symmetry, over routes that
/// several pairs of ranks may share: who has the same route and action is of one lane. Of
/// `resources` only links and port groups count. A route that names a link m times takes m shares
/// of it. Gives up as simulate() does.
[[nodiscard]] double simulated_seconds(const Schedule& schedule, const Topology& resources,
                                       const std::vector<Route>& routes, const RouteOf& route_of,
                                       double size_bytes,
                                       double give_up_s = std::numeric_limits<double>::infinity());

}  // namespace chorus
