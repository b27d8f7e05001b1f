#include "runtime/host/assumed_topology.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "topology/discover/sources.hpp"

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

std::vector<CpuPlace> places_of(const std::vector<Member>& members,
                                const std::vector<Rank>& ranks) {
  std::vector<CpuPlace> places;
  for (const Rank rank : ranks) places.push_back(members[static_cast<std::size_t>(rank)].place);
  return places;
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
    const Member& first = members[static_cast<std::size_t>(host[0])];
    shape.rates.push_back(*first.rates);
    shape.adapter_numas.push_back(first.adapter_numa);
    shape.places.push_back(places_of(members, host));
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
    if (member.neighbor != first || !member.oversubscribed) continue;
    std::set<int> nodes;
    bool several_hosts = false;
    for (std::size_t r = 0; r < members.size(); ++r) {
      if (members[r].neighbor != first) continue;
      nodes.insert(topology.rank_nodes[r]);
      several_hosts = several_hosts || members[r].host != member.host;
    }
    if (!several_hosts) continue;  // then the topology knows
    // Virtual cables between containers cost a core about what the loopback does.
    const HostRates::Loopback& loopback = loopback_of(*member.rates);
    Topology::PortGroup cores{.name = fmt::format("cores of rank {}'s machine", first),
                              .links = {},
                              .beta_s_per_byte = loopback.byte_s / member.machine_cores,
                              .message_s = loopback.message_s / member.machine_cores};
    for (std::size_t i = 0; i < topology.links.size(); ++i) {
      Topology::Link& link = topology.links[i];
      if (!nodes.contains(link.src) && !nodes.contains(link.dst)) continue;
      cores.links.push_back(static_cast<int>(i));
      // What a link of the topology takes per message was mostly this; it is not counted twice.
      link.alpha_s = std::max(0.0, link.alpha_s - loopback.message_s);
    }
    if (!cores.links.empty()) topology.port_groups.push_back(std::move(cores));
  }
}

std::vector<int> levels_of(const std::vector<Member>& members) {
  const auto hosts = by_host(members);
  std::vector<int> levels = levels_inside(places_of(members, hosts[0]));
  Rank expected = 0;
  for (const auto& host : hosts) {
    if (host.size() != hosts[0].size()) return {};
    for (const Rank rank : host) {
      if (rank != expected++) return {};
    }
    if (levels_inside(places_of(members, host)) != levels) {
      levels = {static_cast<int>(host.size())};
    }
  }
  levels.push_back(static_cast<int>(hosts.size()));
  return levels;
}

}  // namespace chorus
