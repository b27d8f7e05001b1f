#include "topology/discover/hw_tree.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "chorus/error.hpp"
#include "topology/discover/rates.hpp"

namespace chorus {
namespace {

using Type = HwObject::Type;

std::string info(const HwObject& object, const std::string& name) {
  const auto it = object.info.find(name);
  return it == object.info.end() ? std::string() : it->second;
}

std::string size_text(std::uint64_t bytes) {
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

/// Does `device` compute? Its class alone cannot tell: the display chip of a board's management
/// controller is a VGA device too.
bool is_gpu(const HwObject& device) {
  constexpr unsigned kNvidia = 0x10de;
  constexpr unsigned kAmd = 0x1002;
  for (const HwObject& child : device.children) {
    if (child.type == Type::os_device && child.os == HwObject::Os::compute) return true;
  }
  const unsigned pci_class = device.pci_class;
  if (pci_class == 0x0302 || pci_class == 0x0380 || pci_class == 0x1200) return true;
  return pci_class == 0x0300 && (device.pci_vendor == kNvidia || device.pci_vendor == kAmd);
}

/// A rate from outside, or 0 (unknown) if no hardware has it.
double plausible(double gb_s) { return gb_s >= 1e-3 && gb_s < 1e6 ? gb_s : 0; }

int count(const HwObject& object, Type type) {
  int sum = object.type == type ? 1 : 0;
  for (const HwObject& child : object.children) sum += count(child, type);
  return sum;
}

PciDevice device_of(const HwObject& object) {
  PciDevice device;
  device.address = object.address;
  device.vendor = object.pci_vendor;
  device.gb_s = plausible(object.link_gb_s * kPcieEfficiency);
  if (object.type == Type::bridge) {
    device.kind = PciDevice::Kind::bridge;
    for (const HwObject& child : object.children) {
      if (child.type == Type::bridge || child.type == Type::pci) {
        device.children.push_back(device_of(child));
      }
    }
    return device;
  }
  device.detail = info(object, "PCIDevice");
  if (is_gpu(object)) {
    device.kind = PciDevice::Kind::gpu;
    for (const HwObject& os : object.children) {
      if (!info(os, "GPUModel").empty()) device.detail = info(os, "GPUModel");
    }
    return device;
  }
  if (object.pci_class >> 8 == 0x02) device.kind = PciDevice::Kind::nic;
  for (const HwObject& os : object.children) {
    const bool infiniband = os.os == HwObject::Os::infiniband;
    if (os.type != Type::os_device || !(infiniband || os.os == HwObject::Os::network)) continue;
    device.kind = PciDevice::Kind::nic;
    // One adapter is listed both as ib0 and mlx5_0, or as eth0 and mlx5_0: the first stands.
    if (!device.ports.empty()) continue;
    NetPort port;
    port.name = os.name;
    if (infiniband || os.name.starts_with("ib")) port.type = "infiniband";
    device.ports.push_back(std::move(port));
  }
  return device;
}

class TreeReader {
 public:
  explicit TreeReader(const HwMachine& machine) : machine_(machine) { box_.name = machine.name; }

  Box read() {
    const HwObject& root = machine_.root;
    box_.detail = joined(
        {info(root, "DMISysVendor"), info(root, "DMIProductName"), info(root, "PlatformModel")});
    read_processors(root, -1, -1);
    drop_empty_numa_nodes();
    if (box_.numa_nodes.empty()) {
      throw TopologyError("no NUMA node with processors: is the description of the machine whole?");
    }
    read_devices(root, -1);
    for (const HwMatrix& matrix : machine_.matrices) read_matrix(matrix);
    return std::move(box_);
  }

 private:
  /// `package` and `numa` are those that `object` lies in, or -1. An object above several NUMA
  /// nodes has none of its own.
  void read_processors(const HwObject& object, int package, int numa) {
    if (object.type == Type::package) package = add_package(object);
    // hwloc 2 hangs a NUMA node beside the processors it is near to, hwloc 1 above them. Of several
    // memories beside the same processors the first is theirs, the others are HBM and the like.
    for (const HwObject* memory : memories(object)) {
      const int added = add_numa(*memory, package);
      numa_of_[memory->id] = added;
      if (!memory->children.empty()) {
        for (const HwObject& below : memory->children) descend(below, package, added);
      } else if (numa_here_.emplace(&object, added).second) {
        numa = added;
      }
    }
    if (numa >= 0) numa_of_.emplace(object.id, numa);
    for (const HwObject& child : object.children) {
      if (child.type != Type::numa) descend(child, package, numa);
    }
  }

  /// The NUMA nodes beside an object's processors, also those behind a memory-side cache.
  static std::vector<const HwObject*> memories(const HwObject& object) {
    std::vector<const HwObject*> found;
    for (const HwObject& child : object.children) {
      if (child.type == Type::numa) found.push_back(&child);
      if (child.type != Type::other || count(child, Type::pu) > 0) continue;
      for (const HwObject* behind : memories(child)) found.push_back(behind);
    }
    return found;
  }

  void descend(const HwObject& object, int package, int numa) {
    if (numa >= 0 && object.type == Type::cache && object.cache_level == 3) {
      ++l3_[numa].first;
      l3_[numa].second = object.bytes;
    }
    // The outermost cache is the last one.
    const int cache = object.type == Type::cache && here_.cache < 0 ? caches_++ : here_.cache;
    const int core = object.type == Type::core ? cores_++ : here_.core;
    const CpuPlace before =
        std::exchange(here_, {.core = core, .cache = cache, .numa = numa, .package = package});
    if (object.type == Type::pu && object.unit >= 0 && numa >= 0) {
      box_.units.emplace(object.unit, here_);
    }
    const bool pushed = object.type == Type::cache && object.cache_level < 3;
    if (pushed)
      private_caches_.push_back(fmt::format("L{} {}", object.cache_level, size_text(object.bytes)));
    if (numa >= 0 && object.type == Type::core) add_core(object, numa);
    if (numa >= 0 && object.type == Type::pu) ++units_[numa];
    read_processors(object, package, numa);
    if (pushed) private_caches_.pop_back();
    here_ = before;
  }

  int add_package(const HwObject& package) {
    box_.packages.push_back(info(package, "CPUModel"));
    box_.socket_gb_s =
        socket_gb_s(info(package, "CPUVendor"), std::atoi(info(package, "CPUFamilyNumber").c_str()),
                    std::atoi(info(package, "CPUModelNumber").c_str()), box_.packages.back());
    return static_cast<int>(box_.packages.size()) - 1;
  }

  int add_numa(const HwObject& numa, int package) {
    NumaNode node;
    node.package = package;
    if (numa.bytes > 0) node.detail = size_text(numa.bytes);
    box_.numa_nodes.push_back(std::move(node));
    return static_cast<int>(box_.numa_nodes.size()) - 1;
  }

  void add_core(const HwObject& core, int numa) {
    std::vector<std::string> parts(private_caches_.rbegin(), private_caches_.rend());
    const int threads = count(core, Type::pu);
    if (threads > 1) parts.push_back(fmt::format("{} threads", threads));
    NumaNode& node = box_.numa_nodes[numa];
    ++node.cores;
    node.core_details.push_back(joined(parts));
  }

  void drop_empty_numa_nodes() {
    std::vector<NumaNode> kept;
    std::vector<int> index(box_.numa_nodes.size(), -1);
    for (std::size_t i = 0; i < box_.numa_nodes.size(); ++i) {
      NumaNode& node = box_.numa_nodes[i];
      const int numa = static_cast<int>(i);
      if (node.cores == 0) node.cores = units_[numa];  // some list processing units only
      if (node.cores == 0) continue;                   // a GPU's or an expander's memory
      index[i] = static_cast<int>(kept.size());
      const auto [caches, bytes] = l3_[numa];
      std::string cache;
      if (caches > 0) {
        cache = fmt::format("{}L3 {}", caches > 1 ? fmt::format("{} x ", caches) : "",
                            size_text(bytes));
      }
      node.detail = joined(
          {node.detail, fmt::format("{} core{}", node.cores, node.cores == 1 ? "" : "s"), cache});
      kept.push_back(std::move(node));
    }
    box_.numa_nodes = std::move(kept);
    for (auto& [object, numa] : numa_of_) numa = index[numa];
    for (auto& [unit, place] : box_.units) {
      place.numa = index[static_cast<std::size_t>(place.numa)];
    }
  }

  /// The NUMA node of an object, or of the first one below it; -1 if there is none.
  int find_numa(const HwObject& object) const {
    if (const auto it = numa_of_.find(object.id); it != numa_of_.end() && it->second >= 0) {
      return it->second;
    }
    for (const HwObject& child : object.children) {
      if (const int numa = find_numa(child); numa >= 0) return numa;
    }
    return -1;
  }

  void read_devices(const HwObject& object, int numa) {
    if (const int own = find_numa(object); own >= 0) numa = own;
    for (const HwObject& child : object.children) {
      const bool is_device = child.type == Type::bridge || child.type == Type::pci;
      if (!is_device) {
        read_devices(child, numa);
        continue;
      }
      std::vector<PciDevice>& devices = box_.numa_nodes[std::max(numa, 0)].devices;
      if (child.type == Type::bridge && child.host_bridge) {
        for (const PciDevice& device : device_of(child).children) devices.push_back(device);
      } else {
        devices.push_back(device_of(child));
      }
    }
  }

  /// The object with this id, and the PCI device it is or belongs to.
  struct Found {
    const HwObject* object = nullptr;
    const HwObject* pci = nullptr;
  };
  static Found find(const HwObject& object, std::uint64_t id, const HwObject* pci) {
    if (object.type == Type::pci) pci = &object;
    if (object.id == id) return {&object, pci};
    for (const HwObject& child : object.children) {
      if (const Found found = find(child, id, pci); found.object != nullptr) return found;
    }
    return {};
  }

  void read_matrix(const HwMatrix& matrix) {
    std::vector<Found> ends;
    for (const std::uint64_t id : matrix.objects) ends.push_back(find(machine_.root, id, nullptr));
    for (std::size_t i = 0; i < ends.size(); ++i) {
      if (ends[i].pci == nullptr || !is_gpu(*ends[i].pci)) continue;
      for (std::size_t j = 0; j < ends.size(); ++j) {
        const double gb_s = static_cast<double>(matrix.mb_s[i * ends.size() + j]) / 1000;
        if (i == j || ends[j].object == nullptr || plausible(gb_s) == 0) continue;
        GpuLink link;
        link.from = ends[i].pci->address;
        link.gb_s = gb_s;
        link.type = matrix.type;
        if (ends[j].pci != nullptr) {
          link.end = is_gpu(*ends[j].pci) ? GpuLink::End::gpu : GpuLink::End::gpu_switch;
          link.to = ends[j].pci->address;
        } else {
          link.end = GpuLink::End::numa;
          link.numa = std::max(find_numa(*ends[j].object), 0);
        }
        box_.gpu_links.push_back(std::move(link));
      }
    }
  }

  const HwMachine& machine_;
  Box box_;
  std::map<std::uint64_t, int> numa_of_;             // by object id
  std::map<const HwObject*, int> numa_here_;         // by the object whose children they are
  std::map<int, std::pair<int, std::uint64_t>> l3_;  // caches and bytes of one, by NUMA node
  std::map<int, int> units_;                         // processing units by NUMA node
  std::vector<std::string> private_caches_;          // from the outermost
  CpuPlace here_;                                    // of the object that is read
  int caches_ = 0;                                   // so far
  int cores_ = 0;
};

}  // namespace

Box box_of(const HwMachine& machine) { return TreeReader(machine).read(); }

}  // namespace chorus
