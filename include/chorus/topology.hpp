// The Topology: what is wired to what, how fast, and who says so.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "chorus/export.hpp"
#include "chorus/schedule.hpp"

namespace chorus {

/// What a node of the wiring is. Data can start and end only where a rank sits; every other node
/// only passes it on.
enum class NodeKind : std::uint8_t {
  host,            ///< a machine's memory and cores taken as one
  package,         ///< a CPU socket
  numa,            ///< a NUMA node: cores and the memory beside them
  pcie_bridge,     ///< a PCIe switch or root port
  gpu,             ///< a GPU, or one die of a multi-die GPU
  nic,             ///< a network adapter
  gpu_switch,      ///< NVSwitch and the like
  network_switch,  ///< an Ethernet or InfiniBand switch, or the network taken as one
  core,            ///< a CPU core with a rank's own memory
};

/// Where a figure came from. A measured figure beats a tabulated one, which beats a declared one.
enum class Provenance : std::uint8_t { declared, table, measured };

/// What is wired to what.
///
/// A plain value: compared with ==, printed, written by hand in a test, saved as JSON
/// (docs/formats.md).
struct Topology {
  struct Node {
    std::string name;  ///< unique within the topology: "gpu0", "host1/nic3"
    NodeKind kind = NodeKind::host;
    int parent = -1;     ///< the node that physically contains this one, or -1
    std::string detail;  ///< for people: model name, PCI bus id, addresses

    bool operator==(const Node&) const = default;
  };

  /// One direction of a cable or bus. A message of s bytes takes alpha_s + s·beta_s_per_byte.
  struct Link {
    int src = 0;  ///< index into nodes
    int dst = 0;  ///< index into nodes
    double alpha_s = 0;
    double beta_s_per_byte = 0;
    std::string type;  ///< "nvlink", "pcie", "infiniband", "ethernet", "shm", …
    Provenance provenance = Provenance::declared;

    bool operator==(const Link&) const = default;
  };

  /// Links that share one resource (a switch port, a NIC, a memory bus, a trunk): together they
  /// carry at most one byte per beta_s_per_byte.
  struct PortGroup {
    std::string name;
    std::vector<int> links;  ///< indices into links
    double beta_s_per_byte = 0;
    /// Seconds of the resource that every message takes per link of the group that it crosses,
    /// whatever its size: the core time of a hand-over or a system call where cores are shared.
    double message_s = 0;

    bool operator==(const PortGroup&) const = default;
  };

  std::string name;
  std::vector<Node> nodes;
  std::vector<Link> links;
  std::vector<PortGroup> port_groups;
  std::vector<int> rank_nodes;  ///< rank_nodes[r]: index of the node that rank r sits on

  [[nodiscard]] int world_size() const { return static_cast<int>(rank_nodes.size()); }

  bool operator==(const Topology&) const = default;
};

/// The topology that `source` means: a file of Chorus JSON, a machine of the catalog or a generator
/// ("2*dgx-a100", "torus:4x4": docs/topologies.md); this machine if it is empty, with one rank per
/// GPU, or per core where there is none. Other programs' files become JSON by `chorus topo FILE
/// --json`. Throws InputError naming what is wrong with it.
[[nodiscard]] CHORUS_API Topology find_topology(std::string_view source);

}  // namespace chorus
