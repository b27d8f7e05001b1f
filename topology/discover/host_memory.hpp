// The part of a Topology that lies inside a host whose ranks exchange through its memory.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "topology/discover/builder.hpp"
#include "topology/discover/cpu_place.hpp"
#include "topology/discover/host_rates.hpp"

namespace chorus {

/// Ranks of one host, and what lies between them.
struct HostMemory {
  int cores = 1;  ///< that the ranks may run on, together
  /// Ranks exchange through memory; otherwise through the loopback interface.
  bool is_shared = true;
  HostRates rates = assumed_host_rates();
  std::vector<CpuPlace> places = {};  ///< by rank, as far as they are known; empty: nowhere
  int adapter_numa = -1;              ///< CpuPlace::numa beside the adapter to the network
  /// For the limits of ranks that reach each other's memory, in place of what messages cost: every
  /// copy as fast as at its best size, and what a rank stores once is read by any number.
  bool for_limits = false;
};

/// Nodes of one host.
struct HostNodes {
  int host = -1;
  std::vector<int> ranks;
  /// At which an adapter hangs: the NUMA node beside it, or `host`.
  int beside_adapter = -1;
};

/// Adds a node of each of `rank_names`, joined to the node `host`, called `name`, by links as fast
/// as messages of ordinary buffers are copied: from a rank into slots, to a rank out of them or by
/// the kernel. What some of the ranks have in common (a package, a NUMA node, a cache, a core) is a
/// node, too, joined to them as fast as cores so near to each other copy; so a message passes the
/// innermost one that both its ends lie in. A port group of the links to ranks is what the cores
/// copy together.
[[nodiscard]] HostNodes add_memory(TopologyBuilder& builder, const std::string& name, int host,
                                   std::span<const std::string> rank_names,
                                   const HostMemory& memory);

/// An adapter to the network, and the links to it and from it.
struct Adapter {
  int node = -1;
  int to = -1;
  int from = -1;
};

/// The adapter of the host called `name`, beside its NUMA node if that is known; who is elsewhere
/// in the host reaches it through that.
[[nodiscard]] Adapter add_adapter(TopologyBuilder& builder, const std::string& name,
                                  const HostNodes& nodes, const HostMemory& memory, const Wire& out,
                                  const Wire& in);

}  // namespace chorus
