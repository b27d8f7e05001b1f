// Puts what NVML says on the machine that hwloc found.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "topology/discover/nvml/nvml.hpp"
#include "topology/discover/rates.hpp"

namespace chorus {
namespace {

constexpr unsigned kNvidia = 0x10de;

bool is_no(PeerAccess access) { return access > PeerAccess::ok; }

std::string_view reason(PeerAccess access) {
  switch (access) {
    case PeerAccess::chipset:
      return "the chipset does not pass it on";
    case PeerAccess::gpu:
      return "the GPU cannot";
    case PeerAccess::bridge:
      return "the I/O hub does not pass it on";
    case PeerAccess::broken:
      return "data sent there arrives damaged or not at all (see chorus doctor: acs, iommu)";
    case PeerAccess::disabled:
      return "the driver's settings forbid it";
    default:
      return "the driver gives no reason";
  }
}

/// "0-2, 5"
std::string ranges(const std::vector<int>& sorted) {
  std::string text;
  for (std::size_t i = 0; i < sorted.size();) {
    std::size_t j = i;
    while (j + 1 < sorted.size() && sorted[j + 1] == sorted[j] + 1) ++j;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", sorted[i]);
    if (j > i) text += fmt::format("-{}", sorted[j]);
    i = j + 1;
  }
  return text;
}

/// One direction of a link, in GB/s: what its generation carries, or less if NVML says that it runs
/// slower. NVML's own figure counts the protocol, too (26.56 for 25 GB/s).
double rate_of(const NvmlLink& link) {
  constexpr double kPayload = 25 / 26.5625;
  const double table = nvlink_gb_s_of_version(link.version);
  const double told = link.mb_s / 1e3;
  if (table <= 0) return told * kPayload;
  return told > 0 ? std::min(table, told) : table;
}

class Join {
 public:
  Join(Box& box, const NvmlReport& report) : box_(box), report_(report), remarks_(report.lost) {}

  std::vector<std::string> run() {
    if (report_.gpus.empty()) return remarks_;
    std::vector<int> unplaced;
    for (int i = 0; i < count(); ++i) {
      if (!place(i)) unplaced.push_back(i);
    }
    for (NumaNode& numa : box_.numa_nodes) disown_others(numa.devices);
    add_unplaced(unplaced);
    add_links();
    compare_links();
    name_missing_access();
    for (NumaNode& numa : box_.numa_nodes) {
      for (PciDevice& device : numa.devices) part(device);
    }
    return remarks_;
  }

 private:
  [[nodiscard]] int count() const { return static_cast<int>(report_.gpus.size()); }

  bool place(int index) {
    for (NumaNode& numa : box_.numa_nodes) {
      for (PciDevice& device : numa.devices) {
        if (place(device, nullptr, index)) return true;
      }
    }
    return false;
  }

  bool place(PciDevice& device, PciDevice* above, int index) {
    if (device.address == report_.gpus[index].address && device.kind != PciDevice::Kind::bridge) {
      describe(device, index);
      // The port above reads the same link, at rest as slow as the GPU's power saving made it.
      if (above != nullptr && above->gb_s > 0 && above->children.size() == 1) {
        above->gb_s = std::max(above->gb_s, device.gb_s);
      }
      return true;
    }
    return std::any_of(device.children.begin(), device.children.end(),
                       [&](PciDevice& child) { return place(child, &device, index); });
  }

  void describe(PciDevice& device, int index) {
    const NvmlGpu& gpu = report_.gpus[index];
    device.kind = PciDevice::Kind::gpu;
    device.order = index;
    device.children.clear();
    std::vector<std::string> parts;
    if (!gpu.model.empty()) parts.push_back(gpu.model);
    if (gpu.sm > 0) parts.push_back(fmt::format("sm_{}", gpu.sm));
    if (gpu.memory_bytes > 0) {
      parts.push_back(fmt::format("{} GiB", (gpu.memory_bytes + (1ULL << 29)) >> 30));
    }
    if (const double lane = pcie_lane_gb_s(gpu.pcie_generation); lane > 0 && gpu.pcie_width > 0) {
      device.gb_s = lane * gpu.pcie_width * kPcieEfficiency;
      parts.push_back(fmt::format("PCIe {} x{}", gpu.pcie_generation, gpu.pcie_width));
      if (gpu.pcie_width < gpu.pcie_most_width) {
        remarks_.push_back(
            fmt::format("GPU {} ({}) uses {} of {} PCIe lanes: is it seated well, and is the slot "
                        "wired for all of them?",
                        index, gpu.address.text(), gpu.pcie_width, gpu.pcie_most_width));
      }
    }
    if (gpu.mig) {
      parts.push_back(fmt::format("MIG: {}", gpu.instances.empty() ? "no instance" : ""));
      std::map<std::string, int> models;
      for (const NvmlInstance& instance : gpu.instances) ++models[instance.model];
      for (const auto& [model, number] : models) {
        const bool first = parts.back() == "MIG: ";
        parts.back() += fmt::format("{}{} x {}", first ? "" : " + ", number, model);
      }
      remarks_.push_back(fmt::format(
          "GPU {} ({}) is in MIG mode: a process sees one instance, and there is no NVLink and no "
          "peer access; nvidia-smi -i {} -mig 0 ends it",
          index, gpu.address.text(), index));
    }
    device.detail = fmt::format("{}", fmt::join(parts, ", "));
  }

  /// NVML knows every GPU of its maker that this process may use.
  void disown_others(std::vector<PciDevice>& devices) const {
    for (PciDevice& device : devices) {
      const bool ours = device.order >= 0 || device.vendor != kNvidia;
      if (device.kind == PciDevice::Kind::gpu && !ours) device.kind = PciDevice::Kind::other;
      disown_others(device.children);
    }
  }

  /// GPUs that meet at PCIe switches hang below one made-up bridge, as nvidia-smi's matrix is read.
  void add_unplaced(const std::vector<int>& unplaced) {
    std::set<int> done;
    for (const int first : unplaced) {
      if (!done.insert(first).second || box_.numa_nodes.empty()) continue;
      const int numa = report_.gpus[first].numa;
      const bool known = numa >= 0 && numa < static_cast<int>(box_.numa_nodes.size());
      PciDevice bridge;
      bridge.kind = PciDevice::Kind::bridge;
      bridge.address = {PciAddress::kNoDomain, static_cast<std::uint32_t>(first), 1, 0};
      for (const int other : unplaced) {
        if (other != first && (!meet_at_switches(first, other) || !done.insert(other).second)) {
          continue;
        }
        PciDevice gpu;
        gpu.address = report_.gpus[other].address;
        gpu.vendor = kNvidia;
        describe(gpu, other);
        bridge.gb_s = std::max(bridge.gb_s, gpu.gb_s);
        bridge.children.push_back(std::move(gpu));
      }
      box_.numa_nodes[known ? numa : 0].devices.push_back(std::move(bridge));
    }
  }

  [[nodiscard]] const NvmlPeer& peer(int from, int to) const {
    static const NvmlPeer kUnknown;
    const std::vector<NvmlPeer>& peers = report_.gpus[from].peers;
    return peers.empty() ? kUnknown : peers[static_cast<std::size_t>(to)];
  }

  [[nodiscard]] bool meet_at_switches(int a, int b) const {
    const Ancestor ancestor = peer(a, b).ancestor;
    return ancestor != Ancestor::unknown && ancestor <= Ancestor::switches;
  }

  [[nodiscard]] bool reach(int a, int b) const {
    for (const NvmlPeer& way : {peer(a, b), peer(b, a)}) {
      if (is_no(way.read) && is_no(way.write)) return false;
    }
    return true;
  }

  [[nodiscard]] int number_of(const PciAddress& address) const {
    for (int i = 0; i < count(); ++i) {
      if (report_.gpus[i].address == address) return i;
    }
    return -1;
  }

  [[nodiscard]] bool switched(int index) const {
    const auto& links = report_.gpus[index].links;
    return std::any_of(links.begin(), links.end(),
                       [](const NvmlLink& link) { return link.end == GpuLink::End::gpu_switch; });
  }

  /// Through switches a GPU reaches those whose links end at switches, too.
  [[nodiscard]] bool reaches_through_switches(int index) const {
    bool alone = true;
    for (int other = 0; other < count(); ++other) {
      if (other == index || !switched(other)) continue;
      alone = false;
      if (reach(index, other)) return true;
    }
    return alone;
  }

  /// NVLinks from one GPU to another, counted by the first.
  [[nodiscard]] int links_between(int from, int to) const {
    const auto& links = report_.gpus[from].links;
    return static_cast<int>(std::count_if(links.begin(), links.end(), [&](const NvmlLink& link) {
      return link.end == GpuLink::End::gpu && link.remote == report_.gpus[to].address;
    }));
  }

  void add_links() {
    const bool any = std::any_of(report_.gpus.begin(), report_.gpus.end(),
                                 [](const NvmlGpu& gpu) { return !gpu.links.empty(); });
    if (!any) return;
    std::erase_if(box_.gpu_links, [](const GpuLink& link) { return link.type == "nvlink"; });
    std::set<PciAddress> switches;
    std::size_t most = 0;
    for (int i = 0; i < count(); ++i) {
      const NvmlGpu& gpu = report_.gpus[i];
      if (gpu.mig) continue;
      std::map<int, int> used;  // links to each GPU that both ends count
      for (const NvmlLink& link : gpu.links) {
        GpuLink found;
        found.from = gpu.address;
        found.to = link.remote;
        found.end = link.end;
        found.gb_s = rate_of(link);
        if (link.end == GpuLink::End::numa) {
          found.numa = std::clamp(gpu.numa, 0, static_cast<int>(box_.numa_nodes.size()) - 1);
        } else if (link.end == GpuLink::End::gpu_switch) {
          if (!reaches_through_switches(i)) continue;
          switches.insert(link.remote);
          most = std::max(most, gpu.links.size());
        } else {
          const int other = number_of(link.remote);
          if (other < 0 || other == i || report_.gpus[other].mig || !reach(i, other)) continue;
          if (used[other]++ >= links_between(other, i)) continue;
        }
        box_.gpu_links.push_back(std::move(found));
      }
    }
    if (switches.empty()) return;
    box_.gpu_switch_detail = fmt::format("{} switch{}, {} NVLinks per GPU", switches.size(),
                                         switches.size() == 1 ? "" : "es", most);
  }

  /// Links that are missing, as the machine's other GPUs show.
  void compare_links() {
    std::map<std::string, std::size_t> most;
    for (const NvmlGpu& gpu : report_.gpus) {
      most[gpu.model] = std::max(most[gpu.model], gpu.links.size());
    }
    for (int i = 0; i < count(); ++i) {
      const NvmlGpu& gpu = report_.gpus[i];
      if (gpu.links.size() < most[gpu.model] && !gpu.mig) {
        remarks_.push_back(
            fmt::format("GPU {} ({}) has {} active NVLinks where another {} has {}: "
                        "nvidia-smi nvlink -s -i {} shows which are down",
                        i, gpu.address.text(), gpu.links.size(), gpu.model, most[gpu.model], i));
      }
      for (int j = 0; j < i; ++j) {
        const int there = links_between(j, i);
        const int back = links_between(i, j);
        if (there == back || gpu.mig || report_.gpus[j].mig) continue;
        remarks_.push_back(
            fmt::format("GPU {} counts {} NVLinks to GPU {}, which counts {}: the lesser is taken",
                        j, there, i, back));
      }
    }
  }

  /// Across sockets hardly any GPUs reach each other: named are those that one would expect to.
  [[nodiscard]] bool should_reach(int a, int b) const {
    return meet_at_switches(a, b) || links_between(a, b) > 0 || links_between(b, a) > 0 ||
           (switched(a) && switched(b));
  }

  void name_missing_access() {
    for (int i = 0; i < count(); ++i) {
      std::map<PeerAccess, std::vector<int>> missing;
      for (int j = 0; j < count(); ++j) {
        if (i == j || reach(i, j) || !should_reach(i, j)) continue;
        if (report_.gpus[i].mig || report_.gpus[j].mig) continue;  // said already
        const NvmlPeer way = is_no(peer(i, j).write) ? peer(i, j) : peer(j, i);
        missing[way.write].push_back(j);
      }
      for (const auto& [why, others] : missing) {
        remarks_.push_back(fmt::format(
            "GPU {} does not reach the memory of GPU {}: {}; their data goes through the host", i,
            ranges(others), reason(why)));
      }
    }
  }

  /// Marks the bridges through which GPUs do not reach each other. Returns the GPUs below.
  std::vector<int> part(PciDevice& device) const {
    if (device.kind == PciDevice::Kind::gpu && device.order >= 0) return {device.order};
    std::vector<int> below;
    for (PciDevice& child : device.children) {
      for (const int gpu : part(child)) below.push_back(gpu);
    }
    for (const int a : below) {
      for (const int b : below) device.parted = device.parted || (a != b && !reach(a, b));
    }
    return below;
  }

  Box& box_;
  const NvmlReport& report_;
  std::vector<std::string> remarks_;
};

}  // namespace

std::vector<std::string> add_nvml(Box& box, const NvmlReport& report) {
  return Join(box, report).run();
}

}  // namespace chorus
