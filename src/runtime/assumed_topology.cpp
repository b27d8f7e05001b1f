#include "runtime/assumed_topology.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "topology/rates.hpp"
#include "topology/sources.hpp"

namespace chorus {
namespace {

// Ranks by machine, machines in order of their first rank.
std::vector<std::vector<Rank>> by_host(const std::vector<Member>& members) {
  std::map<std::string, std::size_t> index;
  std::vector<std::vector<Rank>> hosts;
  for (std::size_t r = 0; r < members.size(); ++r) {
    const auto [it, is_new] = index.try_emplace(members[r].host, hosts.size());
    if (is_new) hosts.emplace_back();
    hosts[it->second].push_back(static_cast<Rank>(r));
  }
  return hosts;
}

}  // namespace

std::size_t num_hosts(const std::vector<Member>& members) { return by_host(members).size(); }

Topology assumed_topology(const std::vector<Member>& members, bool hosts_share_memory) {
  const auto hosts = by_host(members);
  JobShape shape;
  shape.hosts = static_cast<int>(hosts.size());
  shape.cores_per_host = members[0].host_cores;
  shape.ranks_per_host = 1;
  shape.shared_memory = hosts_share_memory;
  for (const auto& host : hosts) {
    shape.ranks_per_host = std::max(shape.ranks_per_host, static_cast<int>(host.size()));
    shape.cores_per_host =
        std::min(shape.cores_per_host, members[static_cast<std::size_t>(host[0])].host_cores);
    shape.rates.push_back(*members[static_cast<std::size_t>(host[0])].rates);
  }
  Topology topology = job_topology(shape);
  // job_topology numbers ranks host by host; put each where it really is.
  const std::vector<int> nodes = topology.rank_nodes;
  topology.rank_nodes.assign(members.size(), 0);
  for (std::size_t h = 0; h < hosts.size(); ++h) {
    for (std::size_t i = 0; i < hosts[h].size(); ++i) {
      topology.rank_nodes[static_cast<std::size_t>(hosts[h][i])] =
          nodes[h * static_cast<std::size_t>(shape.ranks_per_host) + i];
    }
  }
  return topology;
}

void share_cores(Topology& topology, const std::vector<Member>& members) {
  for (Rank first = 0; first < static_cast<Rank>(members.size()); ++first) {
    const Member& member = members[static_cast<std::size_t>(first)];
    if (member.neighbor != first || !member.crowded) continue;
    std::set<int> nodes;
    bool several_hosts = false;
    for (std::size_t r = 0; r < members.size(); ++r) {
      if (members[r].neighbor != first) continue;
      nodes.insert(topology.rank_nodes[r]);
      several_hosts = several_hosts || members[r].host != member.host;
    }
    if (!several_hosts) continue;  // then the topology knows
    Topology::PortGroup cores{.name = fmt::format("cores of rank {}'s machine", first),
                              .links = {},
                              .beta_s_per_byte = 1 / (member.machine_cores * kLoopbackGbS * 1e9),
                              .message_s = kContainerMessageUs * 1e-6 / member.machine_cores};
    for (std::size_t i = 0; i < topology.links.size(); ++i) {
      Topology::Link& link = topology.links[i];
      if (!nodes.contains(link.src) && !nodes.contains(link.dst)) continue;
      cores.links.push_back(static_cast<int>(i));
      // What a link of the topology takes per message was mostly this; it is not counted twice.
      link.alpha_s = std::max(0.0, link.alpha_s - kContainerMessageUs * 1e-6);
    }
    if (!cores.links.empty()) topology.port_groups.push_back(std::move(cores));
  }
}

// The hierarchy that the hierarchical schedules may use: hosts of equal size, numbered host by
// host.
std::vector<int> levels_of(const std::vector<Member>& members) {
  const auto hosts = by_host(members);
  Rank expected = 0;
  for (const auto& host : hosts) {
    if (host.size() != hosts[0].size()) return {};
    for (const Rank rank : host) {
      if (rank != expected++) return {};
    }
  }
  return {static_cast<int>(hosts[0].size()), static_cast<int>(hosts.size())};
}

}  // namespace chorus
