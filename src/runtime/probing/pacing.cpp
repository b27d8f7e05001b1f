#include "runtime/probing/pacing.hpp"

#include <algorithm>

#include "base/index.hpp"
#include "model/price/cost.hpp"

namespace chorus {
namespace {

// Of what else is on the way: less is an error of measurement.
constexpr double kClearlySlower = 1.25;
// Of what a receiver's cable takes: rates are measured to a few percent, others may send there,
// too, and a queue that has formed is to drain.
constexpr double kOfCable = 0.98;

}  // namespace

std::vector<double> paces(const Topology& topology, Rank rank) {
  std::vector<double> result(at(topology.world_size()), 0);
  const std::vector<Route> routes = RouteFinder(topology).from(rank);
  for (std::size_t peer = 0; peer < routes.size(); ++peer) {
    // What a host's own cable takes queues in its own kernel, which limits it.
    bool beyond = false;
    double own_s = 0, trunk_s = 0, cable_s = 0;  // seconds per byte
    for (const int index : routes[peer].path) {
      const Topology::Link& link = topology.links[at(index)];
      const bool to_switch = topology.nodes[at(link.dst)].kind == NodeKind::network_switch;
      const bool known = beyond && link.provenance == Provenance::measured;
      double& part = !known ? own_s : to_switch ? trunk_s : cable_s;
      part = std::max(part, link.beta_s_per_byte);
      beyond = beyond || to_switch;
    }
    const double beyond_s = std::max(trunk_s, cable_s);
    if (beyond_s > kClearlySlower * own_s) {
      result[peer] = (cable_s > trunk_s ? kOfCable : 1) / beyond_s;
    }
  }
  return result;
}

}  // namespace chorus
