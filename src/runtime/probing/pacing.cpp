#include "runtime/probing/pacing.hpp"

#include <algorithm>

#include "base/index.hpp"
#include "model/price/cost.hpp"

namespace chorus {
namespace {

// Of what else is on the way: less is an error of measurement.
constexpr double kClearlySlower = 1.25;

bool between_switches(const Topology& topology, const Topology::Link& link) {
  return topology.nodes[at(link.src)].kind == NodeKind::network_switch &&
         topology.nodes[at(link.dst)].kind == NodeKind::network_switch;
}

}  // namespace

std::vector<double> paces(const Topology& topology, Rank rank) {
  std::vector<double> result(at(topology.world_size()), 0);
  const std::vector<Route> routes = RouteFinder(topology).from(rank);
  for (std::size_t peer = 0; peer < routes.size(); ++peer) {
    double trunk_s = 0, access_s = 0;  // seconds per byte
    for (const int index : routes[peer].path) {
      const Topology::Link& link = topology.links[at(index)];
      const bool known_trunk =
          between_switches(topology, link) && link.provenance == Provenance::measured;
      double& part = known_trunk ? trunk_s : access_s;
      part = std::max(part, link.beta_s_per_byte);
    }
    if (trunk_s > kClearlySlower * access_s) result[peer] = 1 / trunk_s;
  }
  return result;
}

}  // namespace chorus
