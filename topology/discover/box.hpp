// One machine as its sources describe it, before it is made a Topology: what hwloc, NVML, the
// kernel and other programs' files have in common.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chorus/topology.hpp"
#include "topology/discover/cpu_place.hpp"

namespace chorus {

/// Where a PCI function sits. Sources write it in many ways; compared by value.
struct PciAddress {
  std::uint32_t domain = 0;
  std::uint32_t bus = 0;
  std::uint32_t device = 0;
  std::uint32_t function = 0;

  /// Of devices whose source gives them no address; the rest is a number to tell them apart.
  static constexpr std::uint32_t kNoDomain = 0xffffffff;

  auto operator<=>(const PciAddress&) const = default;

  /// "0000:3b:00.0", "3B:00.0", "00000000:3b:00.0"; nothing for anything else.
  static std::optional<PciAddress> parse(std::string_view text);
  [[nodiscard]] std::string text() const;  ///< empty for kNoDomain
};

/// An interface to a network.
struct NetPort {
  std::string name;  ///< "eth0", "mlx5_0"
  double gb_s = 0;   ///< each direction; 0: unknown
  std::string type = "ethernet";
  bool connected = true;  ///< false: no cable into the network
  bool is_virtual = false;
  std::string detail;

  bool operator==(const NetPort&) const = default;
};

struct PciDevice {
  enum class Kind { bridge, gpu, nic, other };

  Kind kind = Kind::other;
  PciAddress address;
  unsigned vendor = 0;  ///< as PCI numbers them; 0: unknown
  double gb_s = 0;      ///< of its link upwards, after protocol overhead; 0: unknown
  /// Of a bridge: GPUs below it do not reach each other through it, but only the host's memory.
  bool parted = false;
  int order = -1;  ///< of a GPU: its number, if the source gives one
  std::string detail;
  std::vector<NetPort> ports;       ///< of a NIC
  std::vector<PciDevice> children;  ///< of a bridge
};

struct NumaNode {
  int package = -1;  ///< index into Box::packages
  int cores = 0;
  std::string detail;
  std::vector<PciDevice> devices;
  std::vector<NetPort> ports;  ///< interfaces that sit on no PCI device
  std::vector<std::string> core_details;
};

/// What a cable between GPUs, or out of one, ends at.
struct GpuLink {
  enum class End { gpu, gpu_switch, numa };

  PciAddress from;
  End end = End::gpu;
  PciAddress to;  ///< of a GPU
  int numa = 0;   ///< of a NUMA node: index into Box::numa_nodes
  double gb_s = 0;
  std::string type = "nvlink";
};

struct Box {
  std::string name;                   ///< of the topology
  std::string detail;                 ///< of the host
  std::vector<std::string> packages;  ///< their models
  std::vector<NumaNode> numa_nodes;
  /// By the kernel's numbers; NUMA nodes and packages are indices into the lists here.
  std::map<int, CpuPlace> units;
  double socket_gb_s = 10;  ///< between NUMA nodes
  /// One direction each: a cable is two of them. Several between the same ends add up.
  std::vector<GpuLink> gpu_links;
  std::string gpu_switch_detail;  ///< of the switch between GPUs, which stands for all there are
  Provenance provenance = Provenance::declared;
};

/// One rank per GPU in the order of their numbers, else of their addresses; one per core if there
/// is no GPU. Bridges that lead to a single device, and devices that are neither GPU nor NIC,
/// are left out; a chain of bridges is as fast as its slowest.
[[nodiscard]] Topology topology_of(Box box);

}  // namespace chorus
