// How long a schedule takes, for those who have a network but no topology.
#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <vector>

#include "chorus/schedule.hpp"
#include "chorus/topology.hpp"
#include "model/price/cost.hpp"
#include "synth/network.hpp"

namespace chorus::synth {

/// Transfers that are still simulated one by one; more take seconds each and more.
inline constexpr std::size_t kMostSimulated = 800'000;
/// The same where it is done for one candidate after the other: a second or two.
inline constexpr std::size_t kMostCompared = 400'000;

/// A topology in which every edge of the network is a link, of the same number, and every resource
/// a port group: edge for edge the same alphas, and the same sharing.
[[nodiscard]] Topology as_topology(const Network& network);

/// By edge its link in as_topology().
[[nodiscard]] std::vector<Route> edge_routes(const Network& network);

/// Simulates on such a topology; on that of a folded network what the ranks of its cell do.
class Predictor {
 public:
  explicit Predictor(const Network& network);  ///< keeps a reference

  /// Seconds of `schedule`, all of whose transfers are edges of the network; infinite as soon as
  /// it is certain that they are more than `give_up_s`.
  [[nodiscard]] double seconds(const Schedule& schedule, double size_bytes,
                               double give_up_s = std::numeric_limits<double>::infinity()) const;

 private:
  const Network& network_;
  Topology topology_;
  std::vector<Route> routes_;
};

/// For schedules too large to simulate: a discrete-event replay in which every link and port group
/// serves one transfer at a time, earlier steps first, in place of fair sharing. Time grows with
/// n·log n in the number of transfers. On a folded network images do at the same time what they are
/// images of. Nothing if a transfer is no edge of the network, or its symmetry another.
[[nodiscard]] std::optional<double> replayed_seconds(const Schedule& schedule,
                                                     const Network& network, double size_bytes);

}  // namespace chorus::synth
