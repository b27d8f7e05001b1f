#include "topology/hwloc_box.hpp"

#include <fmt/format.h>
#include <hwloc/distances.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>

#include "chorus/error.hpp"
#include "topology/rates.hpp"

namespace chorus {
namespace {

std::string info(hwloc_obj_t object, const char* name) {
  const char* value = hwloc_obj_get_info_by_name(object, name);
  return value == nullptr ? std::string() : std::string(value);
}

std::string megabytes(std::uint64_t bytes) {
  if (bytes >= 1ULL << 30) return fmt::format("{} GiB", (bytes + (1ULL << 29)) >> 30);
  if (bytes >= 1ULL << 20) return fmt::format("{} MiB", bytes >> 20);
  return fmt::format("{} KiB", bytes >> 10);
}

std::string joined(const std::vector<std::string>& parts) {
  std::string all;
  for (const std::string& part : parts) {
    if (part.empty()) continue;
    all += all.empty() ? part : ", " + part;
  }
  return all;
}

PciAddress address_of(hwloc_obj_t device) {
  const auto& pci = device->attr->pcidev;
  return {pci.domain, pci.bus, pci.dev, pci.func};
}

/// Does `device` compute? Its class alone cannot tell: the display chip of a board's management
/// controller is a VGA device too.
bool is_gpu(hwloc_obj_t device) {
  constexpr unsigned kNvidia = 0x10de;
  constexpr unsigned kAmd = 0x1002;
  const auto& pci = device->attr->pcidev;
  for (hwloc_obj_t os = device->io_first_child; os != nullptr; os = os->next_sibling) {
    if (os->type == HWLOC_OBJ_OS_DEVICE && os->attr->osdev.type == HWLOC_OBJ_OSDEV_COPROC) {
      return true;
    }
  }
  if (pci.class_id == 0x0302 || pci.class_id == 0x0380 || pci.class_id == 0x1200) return true;
  return pci.class_id == 0x0300 && (pci.vendor_id == kNvidia || pci.vendor_id == kAmd);
}

class HwlocReader {
 public:
  HwlocReader(hwloc_topology_t topology, std::string name) : topology_(topology) {
    box_.name = std::move(name);
  }

  Box read() {
    hwloc_obj_t machine = hwloc_get_root_obj(topology_);
    const std::string product = info(machine, "DMIProductName");
    box_.detail = joined({info(machine, "DMISysVendor"), product, info(machine, "PlatformModel")});
    read_packages();
    read_numa_nodes();
    read_devices();
    read_gpu_links("NVLinkBandwidth", "nvlink");
    read_gpu_links("XGMIBandwidth", "xgmi");
    return std::move(box_);
  }

 private:
  void read_packages() {
    hwloc_obj_t package = nullptr;
    while ((package = hwloc_get_next_obj_by_type(topology_, HWLOC_OBJ_PACKAGE, package))) {
      package_index_.emplace(package, static_cast<int>(box_.packages.size()));
      box_.packages.push_back(info(package, "CPUModel"));
      box_.socket_gb_s = socket_gb_s(
          info(package, "CPUVendor"), std::atoi(info(package, "CPUFamilyNumber").c_str()),
          std::atoi(info(package, "CPUModelNumber").c_str()), box_.packages.back());
    }
  }

  /// NUMA nodes with cores; a GPU's or an expander's memory is none of ours.
  void read_numa_nodes() {
    std::vector<hwloc_obj_t> nodes;
    hwloc_obj_t numa = nullptr;
    while ((numa = hwloc_get_next_obj_by_type(topology_, HWLOC_OBJ_NUMANODE, numa))) {
      const bool covered = std::any_of(nodes.begin(), nodes.end(), [&](hwloc_obj_t other) {
        return hwloc_bitmap_isincluded(numa->cpuset, other->cpuset);
      });
      if (numa->cpuset != nullptr && !hwloc_bitmap_iszero(numa->cpuset) && !covered) {
        nodes.push_back(numa);
      }
    }
    for (hwloc_obj_t node : nodes) read_numa(node);
    if (box_.numa_nodes.empty()) {
      throw TopologyError("hwloc reports no NUMA node with processors on this machine");
    }
  }

  void read_numa(hwloc_obj_t numa) {
    NumaNode node;
    for (hwloc_obj_t above = numa->parent; above != nullptr; above = above->parent) {
      if (above->type == HWLOC_OBJ_PACKAGE) node.package = package_index_.at(above);
    }
    std::vector<std::string> parts;
    const std::uint64_t memory = numa->attr->numanode.local_memory;
    if (memory > 0) parts.push_back(megabytes(memory));
    hwloc_obj_t core = nullptr;
    auto next = [&](hwloc_obj_t previous, hwloc_obj_type_t type) {
      return hwloc_get_next_obj_inside_cpuset_by_type(topology_, numa->cpuset, type, previous);
    };
    while ((core = next(core, HWLOC_OBJ_CORE))) {
      ++node.cores;
      node.core_details.push_back(core_detail(core));
    }
    if (node.cores == 0) {  // some virtual machines list processing units only
      while ((core = next(core, HWLOC_OBJ_PU))) ++node.cores;
    }
    parts.push_back(fmt::format("{} core{}", node.cores, node.cores == 1 ? "" : "s"));
    int caches = 0;
    std::uint64_t size = 0;
    hwloc_obj_t cache = nullptr;
    while ((cache = next(cache, HWLOC_OBJ_L3CACHE))) {
      ++caches;
      size = cache->attr->cache.size;
    }
    if (caches > 0) {
      parts.push_back(caches == 1 ? fmt::format("L3 {}", megabytes(size))
                                  : fmt::format("{} x L3 {}", caches, megabytes(size)));
    }
    node.detail = joined(parts);
    numa_cpusets_.push_back(numa->cpuset);
    box_.numa_nodes.push_back(std::move(node));
  }

  static std::string core_detail(hwloc_obj_t core) {
    std::vector<std::string> parts;
    for (hwloc_obj_t above = core->parent; above != nullptr; above = above->parent) {
      if (above->type == HWLOC_OBJ_L2CACHE || above->type == HWLOC_OBJ_L1CACHE) {
        parts.push_back(fmt::format("L{} {}", above->type == HWLOC_OBJ_L2CACHE ? 2 : 1,
                                    megabytes(above->attr->cache.size)));
      }
    }
    const int threads = hwloc_bitmap_weight(core->cpuset);
    if (threads > 1) parts.push_back(fmt::format("{} threads", threads));
    return joined(parts);
  }

  /// The NUMA node beside an object; the first where it is beside all of them.
  std::size_t nearest_numa(hwloc_obj_t object) const {
    hwloc_obj_t near = hwloc_get_non_io_ancestor_obj(topology_, object);
    for (std::size_t i = 0; near != nullptr && i < numa_cpusets_.size(); ++i) {
      if (hwloc_bitmap_intersects(near->cpuset, numa_cpusets_[i])) return i;
    }
    return 0;
  }

  void read_devices() {
    hwloc_obj_t bridge = nullptr;
    while ((bridge = hwloc_get_next_bridge(topology_, bridge))) {
      if (bridge->attr->bridge.upstream_type != HWLOC_OBJ_BRIDGE_HOST) continue;
      NumaNode& numa = box_.numa_nodes[nearest_numa(bridge)];
      for (hwloc_obj_t child = bridge->io_first_child; child; child = child->next_sibling) {
        numa.devices.push_back(device_of(child));
      }
    }
    // Without bridges (some virtual machines, filtered files) devices hang off the machine itself.
    hwloc_obj_t device = nullptr;
    while ((device = hwloc_get_next_pcidev(topology_, device))) {
      if (device->parent->type == HWLOC_OBJ_BRIDGE) continue;
      box_.numa_nodes[nearest_numa(device)].devices.push_back(device_of(device));
    }
  }

  PciDevice device_of(hwloc_obj_t object) {
    PciDevice device;
    if (object->type == HWLOC_OBJ_BRIDGE) {
      device.kind = PciDevice::Kind::bridge;
      if (object->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI) {
        device.address = address_of(object);
        device.gb_s = object->attr->bridge.upstream.pci.linkspeed * kPcieEfficiency;
      }
      for (hwloc_obj_t child = object->io_first_child; child; child = child->next_sibling) {
        device.children.push_back(device_of(child));
      }
      return device;
    }
    if (object->type != HWLOC_OBJ_PCI_DEVICE) return device;
    device.address = address_of(object);
    device.gb_s = object->attr->pcidev.linkspeed * kPcieEfficiency;
    device.detail = info(object, "PCIDevice");
    if (is_gpu(object)) {
      device.kind = PciDevice::Kind::gpu;
    } else if (object->attr->pcidev.class_id >> 8 == 0x02) {
      device.kind = PciDevice::Kind::nic;
    }
    for (hwloc_obj_t os = object->io_first_child; os; os = os->next_sibling) {
      if (os->type == HWLOC_OBJ_OS_DEVICE) read_os_device(os, device);
    }
    return device;
  }

  static void read_os_device(hwloc_obj_t os, PciDevice& device) {
    if (device.kind == PciDevice::Kind::gpu) {
      const std::string model = info(os, "GPUModel");
      if (!model.empty()) device.detail = model;
      return;
    }
    const bool infiniband = os->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS;
    if (os->attr->osdev.type != HWLOC_OBJ_OSDEV_NETWORK && !infiniband) return;
    device.kind = PciDevice::Kind::nic;
    NetPort port;
    port.name = os->name == nullptr ? "" : os->name;
    if (infiniband || port.name.starts_with("ib")) port.type = "infiniband";
    // One adapter is listed both as ib0 and mlx5_0, or as eth0 and mlx5_0: the first stands.
    if (device.ports.empty()) device.ports.push_back(std::move(port));
  }

  /// The PCI function a GPU's or switch's object stands for; nothing for other objects.
  static hwloc_obj_t pci_of(hwloc_obj_t object) {
    while (object != nullptr && object->type == HWLOC_OBJ_OS_DEVICE) object = object->parent;
    return object != nullptr && object->type == HWLOC_OBJ_PCI_DEVICE ? object : nullptr;
  }

  void read_gpu_links(const char* name, const char* type) {
    unsigned count = 1;
    hwloc_distances_s* matrix = nullptr;
    if (hwloc_distances_get_by_name(topology_, name, &count, &matrix, 0) != 0 || count == 0) return;
    for (unsigned i = 0; i < matrix->nbobjs; ++i) {
      const hwloc_obj_t from = pci_of(matrix->objs[i]);
      if (from == nullptr || !is_gpu(from)) continue;
      for (unsigned j = 0; j < matrix->nbobjs; ++j) {
        const std::uint64_t megabytes_s = matrix->values[i * matrix->nbobjs + j];
        if (i == j || megabytes_s == 0 || matrix->objs[j] == nullptr) continue;
        add_gpu_link(from, matrix->objs[j], static_cast<double>(megabytes_s) / 1000, type);
      }
    }
    hwloc_distances_release(topology_, matrix);
  }

  void add_gpu_link(hwloc_obj_t from, hwloc_obj_t to, double gb_s, const char* type) {
    GpuLink link;
    link.from = address_of(from);
    link.gb_s = gb_s;
    link.type = type;
    if (const hwloc_obj_t device = pci_of(to)) {
      link.end = is_gpu(device) ? GpuLink::End::gpu : GpuLink::End::gpu_switch;
      link.to = address_of(device);
    } else {
      link.end = GpuLink::End::numa;
      link.numa = static_cast<int>(nearest_numa(to));
    }
    box_.gpu_links.push_back(std::move(link));
  }

  hwloc_topology_t topology_;
  Box box_;
  std::map<hwloc_obj_t, int> package_index_;
  std::vector<hwloc_const_bitmap_t> numa_cpusets_;
};

}  // namespace

HwlocHandle hwloc_empty() {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) {
    throw TopologyError("hwloc cannot be initialised: out of memory?");
  }
  HwlocHandle handle(topology);
  hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  return handle;
}

Box box_of(hwloc_topology_t topology, std::string name) {
  return HwlocReader(topology, std::move(name)).read();
}

}  // namespace chorus
