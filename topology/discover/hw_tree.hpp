// A machine as a tree of hardware objects: what hwloc finds here, and what its XML files hold.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "topology/discover/box.hpp"

namespace chorus {

struct HwObject {
  enum class Type { other, package, numa, cache, core, pu, bridge, pci, os_device };
  enum class Os { other, compute, network, infiniband };

  Type type = Type::other;
  std::uint64_t id = 0;     ///< unique within the machine
  std::uint64_t bytes = 0;  ///< of a cache or a NUMA node's memory
  int unit = -1;            ///< of a processing unit: the kernel's number; -1: not given
  int cache_level = 0;
  PciAddress address;      ///< of a PCI device, or a bridge that is one
  unsigned pci_class = 0;  ///< 0x0302
  unsigned pci_vendor = 0;
  double link_gb_s = 0;      ///< nominal, of the PCIe link upwards; 0: unknown
  bool host_bridge = false;  ///< of a bridge: between processors and PCI
  Os os = Os::other;         ///< of an OS device
  std::string name;          ///< of an OS device: "eth0"
  std::map<std::string, std::string> info;
  std::vector<HwObject> children;  ///< of every kind
};

/// Bandwidths between objects.
struct HwMatrix {
  std::string type;                    ///< "nvlink" or "xgmi"
  std::vector<std::uint64_t> objects;  ///< their ids; 0: gone
  std::vector<std::uint64_t> mb_s;     ///< [objects · objects], from row to column
};

struct HwMachine {
  std::string name;
  HwObject root;
  std::vector<HwMatrix> matrices;
};

/// Packages, NUMA nodes with their cores, the PCIe tree with GPUs and NICs, links between GPUs.
/// Interfaces carry names and no speeds. Throws TopologyError if no NUMA node has a processor.
[[nodiscard]] Box box_of(const HwMachine& machine);

/// An XML file of hwloc 2 or 3. Throws InputError as topology_from_hwloc_xml does.
[[nodiscard]] HwMachine machine_from_hwloc_xml(std::string_view text, std::string_view where);

}  // namespace chorus
