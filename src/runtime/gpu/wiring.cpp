#include "runtime/gpu/wiring.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/counted.hpp"
#include "chorus/error.hpp"
#include "device/image.hpp"
#include "model/price/cost.hpp"
#include "model/program/direct.hpp"
#include "model/program/program.hpp"
#include "runtime/host/host_probe.hpp"
#include "topology/discover/rates.hpp"

namespace chorus {
namespace {

// Of what this cannot see. That a way within a host is many times one between hosts is what counts.
constexpr int kLinksOfGpu = 18;  // into the switch of a DGX-H100
constexpr int kArchitecture = 90;
constexpr double kBlocksGbS = 32 * 50;  // of a launch (docs/gpu-estimate.md)

class DeviceWiring {
 public:
  DeviceWiring(std::string name, std::size_t num_ranks) {
    topology_.name = std::move(name);
    topology_.rank_nodes.assign(num_ranks, -1);
  }
  int node(std::string name, NodeKind kind, int parent = -1, std::string detail = {}) {
    topology_.nodes.push_back(
        {.name = std::move(name), .kind = kind, .parent = parent, .detail = std::move(detail)});
    return static_cast<int>(topology_.nodes.size()) - 1;
  }
  /// Both directions.
  void cable(int a, int b, double alpha_s, double beta_s_per_byte, const char* type,
             Provenance provenance = Provenance::table) {
    for (const auto& [src, dst] : {std::pair(a, b), std::pair(b, a)}) {
      topology_.links.push_back({.src = src,
                                 .dst = dst,
                                 .alpha_s = alpha_s,
                                 .beta_s_per_byte = beta_s_per_byte,
                                 .type = type,
                                 .provenance = provenance});
    }
  }
  Topology take() { return std::move(topology_); }

  /// The host with its GPUs, around one switch if they are `together`; returns its node.
  int add_assumed(const GpuPlaces& places, int h, bool together) {
    const std::size_t n = places.host.size();
    const int host = node(fmt::format("host{}", h), NodeKind::host);
    const int gpu_switch =
        together ? node(fmt::format("host{}/gpu switch", h), NodeKind::gpu_switch, host) : -1;
    for (std::size_t r = 0; r < n; ++r) {
      if (places.host[r] != h) continue;
      const int gpu = node(fmt::format("host{}/gpu of rank {}", h, r), NodeKind::gpu, host);
      cable(gpu, host, kPcieHopUs * 1e-6, 1 / (kPcieUnknownGbS * 1e9), "pcie");
      if (together) {
        cable(gpu, gpu_switch, kGpuLinkUs / 2 * 1e-6,
              1 / (kLinksOfGpu * nvlink_gb_s(kArchitecture) * 1e9), "nvlink");
      }
      topology_.rank_nodes[r] = gpu;
    }
    return host;
  }

  /// All that was discovered of the host but the network, which its adapters were found to lead to:
  /// what lies between hosts others have measured. Its NUMA nodes reach the network over the host,
  /// whose node is returned.
  int add_discovered(const GpuPlaces& places, int h) {
    const Topology& found = places.discovered[static_cast<std::size_t>(h)];
    const std::string prefix = fmt::format("host{}/", h);
    const int host = node(fmt::format("host{}", h), NodeKind::host);
    std::vector<int> at(found.nodes.size(), -1);
    for (std::size_t i = 0; i < found.nodes.size(); ++i) {
      const Topology::Node& each = found.nodes[i];
      if (each.kind == NodeKind::network_switch) continue;
      const int parent = each.parent < 0 ? host : at[static_cast<std::size_t>(each.parent)];
      at[i] = each.kind == NodeKind::host
                  ? host
                  : node(prefix + each.name, each.kind, parent, each.detail);
      if (each.kind == NodeKind::numa) {
        cable(at[i], host, kSocketHopUs / 2 * 1e-6, 1 / (kPcieUnknownGbS * 1e9), "memory");
      }
    }
    std::vector<int> link_at(found.links.size(), -1);
    for (std::size_t i = 0; i < found.links.size(); ++i) {
      Topology::Link link = found.links[i];
      link.src = at[static_cast<std::size_t>(link.src)];
      link.dst = at[static_cast<std::size_t>(link.dst)];
      if (link.src < 0 || link.dst < 0) continue;
      link_at[i] = static_cast<int>(topology_.links.size());
      topology_.links.push_back(std::move(link));
    }
    for (Topology::PortGroup group : found.port_groups) {
      for (int& link : group.links) link = link_at[static_cast<std::size_t>(link)];
      std::erase(group.links, -1);
      group.name = prefix + group.name;
      if (!group.links.empty()) topology_.port_groups.push_back(std::move(group));
    }
    for (std::size_t r = 0; r < places.host.size(); ++r) {
      if (places.host[r] != h) continue;
      const auto gpu = static_cast<std::size_t>(places.gpu[r]);
      topology_.rank_nodes[r] = at[static_cast<std::size_t>(found.rank_nodes[gpu])];
    }
    return host;
  }

 private:
  Topology topology_;
};

/// Whether all GPUs of the host reach each other's memory.
bool are_together(const GpuPlaces& places, int h) {
  const std::size_t n = places.host.size();
  for (std::size_t a = 0; a < n; ++a) {
    for (std::size_t b = 0; b < n; ++b) {
      if (places.host[a] == h && places.host[b] == h && !places.reaches[a * n + b]) return false;
    }
  }
  return true;
}

/// Whether the host's Topology has a GPU of its own for each of its ranks, and is what messages
/// between them take.
bool is_discovered(const GpuPlaces& places, int h) {
  const auto host = static_cast<std::size_t>(h);
  if (places.discovered.size() <= host || !are_together(places, h)) return false;
  const Topology& found = places.discovered[host];
  std::set<int> gpus;
  for (std::size_t r = 0; r < places.host.size(); ++r) {
    if (places.host[r] != h) continue;
    const int gpu = places.gpu.size() > r ? places.gpu[r] : -1;
    if (gpu < 0 || gpu >= found.world_size() || !gpus.insert(gpu).second) return false;
    const int node = found.rank_nodes[static_cast<std::size_t>(gpu)];
    if (found.nodes[static_cast<std::size_t>(node)].kind != NodeKind::gpu) return false;
  }
  return !gpus.empty();
}

/// What joins two hosts: the slowest link between the first two ranks that are apart.
struct Between {
  double alpha_s = kEthernetPathUs * 1e-6;
  double beta_s_per_byte = 1 / (kInterfaceUnknownGbS * 1e9);
  Provenance provenance = Provenance::table;
};
Between between_hosts(const GpuPlaces& places, const Topology& communicator) {
  const auto far =
      std::find_if(places.host.begin(), places.host.end(), [](int host) { return host != 0; });
  const auto rank = static_cast<std::size_t>(far - places.host.begin());
  const std::vector<Route> routes = RouteFinder(communicator).from(0);
  Between between;
  if (far == places.host.end() || !routes[rank].connected || routes[rank].path.empty()) {
    return between;
  }
  between = {.alpha_s = routes[rank].alpha_s, .beta_s_per_byte = 0, .provenance = {}};
  for (const int index : routes[rank].path) {
    const Topology::Link& link = communicator.links[static_cast<std::size_t>(index)];
    if (link.beta_s_per_byte < between.beta_s_per_byte) continue;
    between.beta_s_per_byte = link.beta_s_per_byte;
    between.provenance = link.provenance;
  }
  return between;
}

// Kernels fold straight from all inputs into all outputs, if the schedule lets them. What the wires
// carry is priced already; this adds what the busiest GPU moves, and its copy in place.
void amend_direct(const Schedule& made, const Options& options, Candidate& candidate) {
  const auto forms = direct(made);
  if (!forms) {
    if (candidate.name != options.algorithm) {
      candidate.why_not = "relays, but all GPUs reach each other's memory";
    }
    return;
  }
  double most = 0;
  for (const DirectProgram& form : *forms) {
    double moved = form.copy_in_place ? 2.0 * form.num_chunks : 0;
    for (const Move& move : form.moves) {
      moved += move.count * static_cast<double>(move.sources.size() + move.destinations.size());
    }
    most = std::max(most, moved);
  }
  candidate.price += {.beta_s_per_byte = most * chunk_bytes(made, 1) / (kBlocksGbS * 1e9)};
}

/// Of schedules for more ranks than a fold has operands.
void amend_many(const Schedule& made, Candidate& candidate) {
  if (device::has_room_for_operands(lower(made))) return;
  candidate.why_not = fmt::format("some rank folds or sends to more than the {} that kernels take",
                                  device::kMostOperands);
}

}  // namespace

int GpuPlaces::num_hosts() const {
  return host.empty() ? 0 : *std::max_element(host.begin(), host.end()) + 1;
}

bool GpuPlaces::all_reach() const {
  return std::all_of(reaches.begin(), reaches.end(), [](bool each) { return each; });
}

std::string gpu_facts(const Options& options) {
  DiscoveredHost host = find_discovered_host(options.host_probe, options.probe_cache, {});
  if (host.gpus.empty()) return {};
  host.units.clear();
  return to_json(host);
}

void learn_gpus(GpuPlaces& places, std::span<const std::string> uuids,
                std::span<const std::string> said) {
  places.discovered.assign(static_cast<std::size_t>(places.num_hosts()), {});
  places.gpu.assign(places.host.size(), -1);
  for (std::size_t r = 0; r < said.size(); ++r) {
    const int h = places.host[r];
    const bool is_first =
        std::ranges::find(places.host, h) - places.host.begin() == static_cast<std::ptrdiff_t>(r);
    if (said[r].empty() || !is_first) continue;
    DiscoveredHost host;
    try {
      host = discovered_host_from_json(said[r], fmt::format("rank {}'s machine", r));
    } catch (const InputError& error) {
      throw BootstrapError(error.what());
    }
    for (std::size_t other = r; other < places.host.size(); ++other) {
      if (places.host[other] != h) continue;
      const auto gpu = std::ranges::find(host.gpus, uuids[other]);
      if (gpu != host.gpus.end()) {
        places.gpu[other] = static_cast<int>(gpu - host.gpus.begin());
      }
    }
    places.discovered[static_cast<std::size_t>(h)] = std::move(host.topology);
  }
}

Topology gpu_topology(const GpuPlaces& places, const Topology& communicator) {
  const auto on_gpu = [&](int node) {
    return communicator.nodes[static_cast<std::size_t>(node)].kind == NodeKind::gpu;
  };
  if (std::all_of(communicator.rank_nodes.begin(), communicator.rank_nodes.end(), on_gpu)) {
    return communicator;
  }
  const int hosts = places.num_hosts();
  DeviceWiring wiring(
      fmt::format("{} on {}", counted(places.host.size(), "GPU"), counted(hosts, "host")),
      places.host.size());
  const Between between = between_hosts(places, communicator);
  const int network = hosts > 1 ? wiring.node("network", NodeKind::network_switch) : -1;
  for (int h = 0; h < hosts; ++h) {
    const int host = is_discovered(places, h)
                         ? wiring.add_discovered(places, h)
                         : wiring.add_assumed(places, h, are_together(places, h));
    if (network >= 0) {
      wiring.cable(host, network, between.alpha_s / 2, between.beta_s_per_byte, "network",
                   between.provenance);
    }
  }
  return wiring.take();
}

std::vector<int> gpu_levels(const GpuPlaces& places) {
  const auto n = static_cast<int>(places.host.size());
  const int hosts = places.num_hosts();
  if (hosts == 0 || n % hosts != 0) return {};
  const int each = n / hosts;
  for (int r = 0; r < n; ++r) {
    if (places.host[static_cast<std::size_t>(r)] != r / each) return {};
  }
  return {each, hosts};
}

Pricing gpu_pricing(bool all_reach, const Options& options) {
  return {.amend = [all_reach, &options](const Schedule& made, Candidate& candidate) {
    if (made.world_size > static_cast<int>(device::kMostOperands)) {
      amend_many(made, candidate);
    } else if (all_reach) {
      amend_direct(made, options, candidate);
    }
  }};
}

}  // namespace chorus
