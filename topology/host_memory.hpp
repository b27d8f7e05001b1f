// The part of a Topology that lies inside a host whose ranks exchange through its memory.
#pragma once

#include <span>
#include <string>

#include "topology/builder.hpp"
#include "topology/host_rates.hpp"

namespace chorus {

/// Ranks of one host, and what lies between them.
struct HostMemory {
  int cores = 1;  ///< that the ranks may run on, together
  /// Ranks exchange through memory; otherwise through the loopback interface.
  bool is_shared = true;
  HostRates rates = assumed_host_rates();
  /// For the limits of ranks that reach each other's memory, in place of what messages cost: every
  /// copy as fast as at its best size, and what a rank stores once is read by any number.
  bool for_limits = false;
};

/// Joins the nodes of `ranks` to the node `host`, called `name`, by links as fast as messages of
/// ordinary buffers are copied: from a rank into slots, to a rank out of them or by the kernel. A
/// port group of the links to ranks is what the cores copy together.
void add_memory(TopologyBuilder& builder, const std::string& name, int host,
                std::span<const int> ranks, const HostMemory& memory);

}  // namespace chorus
