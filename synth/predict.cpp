#include "synth/predict.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <utility>

namespace chorus::synth {
namespace {

Topology stand_in(const Network& network) {
  Topology topology;
  for (Rank rank = 0; rank < network.world_size(); ++rank) {
    topology.nodes.push_back({fmt::format("rank{}", rank), NodeKind::host, -1, {}});
    topology.rank_nodes.push_back(rank);
  }
  for (const Resource& resource : network.resources()) {
    topology.port_groups.push_back(
        {resource.name, {}, resource.beta_s_per_byte, resource.message_s});
  }
  for (const Edge& edge : network.edges()) {
    const auto link = static_cast<int>(topology.links.size());
    topology.links.push_back({edge.src, edge.dst, edge.alpha_s, 0, {}, Provenance::declared});
    for (const int resource : edge.resources) {
      topology.port_groups[static_cast<std::size_t>(resource)].links.push_back(link);
    }
  }
  return topology;
}

}  // namespace

Predictor::Predictor(const Network& network) : topology_(stand_in(network)), routes_(topology_) {}

double Predictor::seconds(const Schedule& schedule, double size_bytes) const {
  return simulate(schedule, topology_, routes_, size_bytes).seconds;
}

}  // namespace chorus::synth
