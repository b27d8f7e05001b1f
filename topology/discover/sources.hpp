// Where topologies come from.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chorus/topology.hpp"
#include "topology/discover/host_memory.hpp"

namespace chorus {

/// This machine as hwloc and the kernel's network interfaces describe it: packages, NUMA nodes,
/// caches, the PCIe tree with GPUs and NICs, interfaces with their speeds. One rank per GPU if
/// there are any, else one per core. Throws TopologyError.
[[nodiscard]] Topology discover();

/// A machine of the built-in catalog or a generator string:
///   dgx1 dgx2 ndv2 dgx-a100 dgx-h100 nvl72 mi250x mi250 mi300x z52 p3dn pcie8 …
///   ring:8  mesh:4x4  torus:4x4x4  hypercube:4  fat-tree:…  dragonfly:…  2*dgx-a100  …
/// Throws InputError naming the unknown part and what is known.
[[nodiscard]] Topology topology_from_name(std::string_view name);

/// Whether `source` means a file, there or not, in place of a name: one that exists, one that ends
/// as files of topologies do, or one with a slash before its first comma. Behind it slashes belong
/// to names of nodes (4*ndv2,without=host1/gpu3).
[[nodiscard]] bool means_a_file(std::string_view source);

/// Of the hosts' rates in topology_from_name(name), what each cable of theirs has: lan:4,cables=2
/// is a topology whose hosts have one link of the rate of both. They sum up to 1; {1} where a host
/// has one cable. Throws InputError as that does.
[[nodiscard]] std::vector<double> cable_shares(std::string_view name);

struct CatalogEntry {
  std::string_view name;
  std::string_view summary;  ///< what it is and where its figures come from
};
[[nodiscard]] std::span<const CatalogEntry> catalog();

/// `ranks_per_host` processes on each of `hosts` machines like this one, joined by a network:
/// what a communicator assumes when nobody told it more. rank = host · ranks_per_host + local.
struct JobShape {
  int hosts = 1;
  int ranks_per_host = 1;
  int cores_per_host = 1;
  double network_gb_s = 1.25;              ///< per host and direction
  Provenance network = Provenance::table;  ///< of the network's rate
  /// Ranks of one host exchange through its memory; otherwise through its loopback interface.
  bool shared_memory = true;
  /// What copying costs on each host; those beyond the last are like that one. Empty: assumed.
  std::vector<HostRates> rates = {};
  /// Where the ranks of each host are; of hosts beyond the last as of that one. Empty: not known.
  std::vector<std::vector<CpuPlace>> places = {};
  std::vector<int> adapter_numas = {};  ///< HostMemory::adapter_numa of each host; empty: not known
  bool for_limits = false;              ///< HostMemory::for_limits
};
[[nodiscard]] Topology job_topology(const JobShape& shape);

}  // namespace chorus
