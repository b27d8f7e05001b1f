#include "runtime/pacing.hpp"

#include <algorithm>

#include "base/index.hpp"
#include "model/cost.hpp"

namespace chorus {
namespace {

// Of what else is on the way: less is an error of measurement.
constexpr double kClearlySlower = 1.25;

}  // namespace

std::vector<double> paces(const Topology& topology, Rank rank) {
  std::vector<double> result(at(topology.world_size()), 0);
  const std::vector<Route> routes = RouteFinder(topology).from(rank);
  for (std::size_t peer = 0; peer < routes.size(); ++peer) {
    // Seconds per byte: of what the sender's own kernel queues for, and of what lies behind.
    double own_s = 0, behind_s = 0;
    bool is_measured = false;
    bool has_left = false;  // the sender's machine
    for (const int index : routes[peer].path) {
      const Topology::Link& link = topology.links[at(index)];
      if (!has_left) {
        own_s = std::max(own_s, link.beta_s_per_byte);
        has_left = topology.nodes[at(link.dst)].kind == NodeKind::network_switch;
      } else if (link.beta_s_per_byte > behind_s) {
        behind_s = link.beta_s_per_byte;
        is_measured = link.provenance == Provenance::measured;
      }
    }
    if (is_measured && behind_s > kClearlySlower * own_s) result[peer] = 1 / behind_s;
  }
  return result;
}

}  // namespace chorus
