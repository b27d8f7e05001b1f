// What a communicator assumes of a job when nobody told it more.
#include <fmt/format.h>

#include <algorithm>

#include "base/counted.hpp"
#include "chorus/error.hpp"
#include "topology/catalog/spec.hpp"
#include "topology/discover/builder.hpp"
#include "topology/discover/host_memory.hpp"
#include "topology/discover/rates.hpp"
#include "topology/discover/sources.hpp"

namespace chorus {
namespace {

void check(const JobShape& shape) {
  if (shape.hosts < 1 || shape.ranks_per_host < 1 || shape.cores_per_host < 1) {
    throw InputError(
        fmt::format("a job of {}, {} per host and {} per host: each must be at least 1",
                    counted(shape.hosts, "host"), counted(shape.ranks_per_host, "rank"),
                    counted(shape.cores_per_host, "core")));
  }
  if (long{shape.hosts} * shape.ranks_per_host > kMostRanks) {
    throw InputError(fmt::format("a job of {} with {} each: at most {} ranks in all",
                                 counted(shape.hosts, "host"),
                                 counted(shape.ranks_per_host, "rank"), kMostRanks));
  }
  if (!(shape.network_gb_s > 0) || shape.network_gb_s > 1e6) {
    throw InputError(fmt::format("a network of {} GB/s: it must be above 0 and at most 1000000",
                                 shape.network_gb_s));
  }
}

HostMemory memory_of(const JobShape& shape, std::size_t host) {
  HostMemory memory{.cores = shape.cores_per_host,
                    .is_shared = shape.shared_memory,
                    .for_limits = shape.for_limits};
  if (!shape.rates.empty()) memory.rates = shape.rates[std::min(host, shape.rates.size() - 1)];
  if (!shape.places.empty()) memory.places = shape.places[std::min(host, shape.places.size() - 1)];
  if (host < shape.adapter_numas.size()) memory.adapter_numa = shape.adapter_numas[host];
  return memory;
}

}  // namespace

Topology job_topology(const JobShape& shape) {
  check(shape);
  const Wire inner{shape.network_gb_s, 0, "sockets", shape.network};
  const Wire outer{shape.network_gb_s, kEthernetPathUs / 2, "ethernet", shape.network};

  TopologyBuilder builder(
      fmt::format("{} x {}", counted(shape.hosts, "host"), counted(shape.ranks_per_host, "rank")));
  const int network = shape.hosts > 1 ? builder.node("network", NodeKind::network_switch) : -1;
  for (int h = 0; h < shape.hosts; ++h) {
    const std::string name = fmt::format("host{}", h);
    const int host = builder.node(name, NodeKind::host);
    std::vector<std::string> ranks;
    for (int r = 0; r < shape.ranks_per_host; ++r)
      ranks.push_back(fmt::format("{}/rank{}", name, r));
    const HostMemory memory = memory_of(shape, static_cast<std::size_t>(h));
    const HostNodes nodes = add_memory(builder, name, host, ranks, memory);
    for (const int rank : nodes.ranks) builder.rank(rank);
    if (network < 0) continue;
    const Adapter nic = add_adapter(builder, name, nodes, memory, inner, inner);
    builder.both_ways(nic.node, network, outer);
    builder.group(name + "/sockets", {nic.to, nic.from}, 2 * shape.network_gb_s,
                  loopback_of(memory.rates).message_s * 1e6 / shape.cores_per_host);
  }
  return builder.take();
}

}  // namespace chorus
