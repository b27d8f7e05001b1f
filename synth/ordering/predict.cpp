#include "synth/ordering/predict.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "synth/ordering/list_scheduler.hpp"

namespace chorus::synth {
namespace {

/// The transfers of a schedule as jobs. What a rank holds of a chunk goes through versions, one for
/// each step in which something arrives: instants that wait for the arrivals and the version
/// before.
std::optional<JobGraph> jobs_of(const Schedule& schedule, const Network& network) {
  JobGraph graph;
  std::unordered_map<std::int64_t, int> held;  // (rank, chunk) to its newest version
  const auto place = [&](Rank rank, ChunkId chunk) {
    return std::int64_t{rank} * schedule.num_chunks + chunk;
  };
  for (std::size_t s = 0; s < schedule.steps.size(); ++s) {
    const Step& step = schedule.steps[s];
    std::vector<int> jobs;
    for (const Transfer& transfer : step) {
      const std::optional<int> edge = network.edge(transfer.src, transfer.dst);
      if (!edge) return std::nullopt;
      jobs.push_back(graph.add({*edge, {-static_cast<double>(s), 0, 0}}));
      const auto before = held.find(place(transfer.src, transfer.chunk));
      if (before != held.end()) graph.wait(jobs.back(), before->second);
    }
    const auto first_version = static_cast<int>(graph.jobs().size());
    for (std::size_t i = 0; i < step.size(); ++i) {
      const auto [newest, is_first] = held.try_emplace(place(step[i].dst, step[i].chunk), -1);
      if (newest->second < first_version) {
        const int version = graph.add({});
        if (!is_first) graph.wait(version, newest->second);
        newest->second = version;
      }
      graph.wait(newest->second, jobs[i]);
    }
  }
  return graph;
}

/// Among the jobs of one step, those with the longest way still before them go first. Every wait is
/// for a job of lower number, and waits are listed by the number of the one who waits.
void prefer_long_ways(JobGraph& graph, const Network& network, double bytes) {
  std::vector<Job>& jobs = graph.jobs();
  std::vector<double> way_s(jobs.size(), 0);
  for (std::size_t job = 0; job < jobs.size(); ++job) {
    if (jobs[job].edge < 0) continue;
    const Edge& edge = network.edges()[static_cast<std::size_t>(jobs[job].edge)];
    way_s[job] = edge.alpha_s + bytes * edge.beta_s_per_byte;
  }
  const std::vector<double> own_s = way_s;
  for (auto wait = graph.waits().rbegin(); wait != graph.waits().rend(); ++wait) {
    const auto before = static_cast<std::size_t>(wait->first);
    way_s[before] =
        std::max(way_s[before], own_s[before] + way_s[static_cast<std::size_t>(wait->second)]);
  }
  for (std::size_t job = 0; job < jobs.size(); ++job) {
    std::get<1>(jobs[job].urgency) = static_cast<int>(std::min(way_s[job] * 1e9, 2e9));
  }
}

}  // namespace

Topology as_topology(const Network& network) {
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

std::vector<Route> edge_routes(const Network& network) {
  std::vector<Route> routes;
  for (const Edge& edge : network.edges()) {
    routes.push_back({{static_cast<int>(routes.size())}, edge.alpha_s, true, false});
  }
  return routes;
}

Predictor::Predictor(const Network& network)
    : network_(network), topology_(as_topology(network)), routes_(edge_routes(network)) {}

double Predictor::seconds(const Schedule& schedule, double size_bytes, double give_up_s) const {
  return simulated_seconds(
      schedule, topology_, routes_,
      [&](Rank src, Rank dst) { return at(*network_.edge(src, dst)); }, size_bytes, give_up_s);
}

std::optional<double> replayed_seconds(const Schedule& schedule, const Network& network,
                                       double size_bytes) {
  if (schedule.symmetry != network.cells().radices()) return std::nullopt;
  std::optional<JobGraph> jobs = jobs_of(schedule, network);
  if (!jobs) return std::nullopt;
  const double bytes = chunk_bytes(schedule, size_bytes);
  prefer_long_ways(*jobs, network, bytes);
  ListScheduler scheduler(network, *std::move(jobs), bytes);
  (void)scheduler.run();
  return scheduler.seconds();
}

}  // namespace chorus::synth
