// Asks NVML. Nothing that it answers is believed before it was looked at: drivers in containers and
// virtual machines refuse single calls, and numbers end up as indices.
#include "topology/discover/nvml/nvml.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "topology/discover/nvml/library.hpp"

namespace chorus {
namespace {

using nvml::kSuccess;

/// A text of the library as it may be printed: ASCII, bounded.
std::string clean(const char (&text)[nvml::kTextSize]) {
  std::string result;
  for (const char c : text) {
    if (c == '\0') break;
    result += c >= ' ' && c <= '~' ? c : '?';
  }
  return result;
}

/// One that can be; else that of no device.
PciAddress address_of(const nvml::PciInfo& pci) {
  if (pci.bus > 0xff || pci.device > 0x1f) return {PciAddress::kNoDomain, 0, 0, 0};
  return {pci.domain, pci.bus, pci.device, 0};
}

PeerAccess access_of(int status) {
  constexpr PeerAccess kStatus[] = {PeerAccess::ok,       PeerAccess::chipset,
                                    PeerAccess::gpu,      PeerAccess::bridge,
                                    PeerAccess::disabled, PeerAccess::not_supported};
  const bool known = status >= 0 && status < static_cast<int>(std::size(kStatus));
  return known ? kStatus[status] : PeerAccess::unknown;
}

Ancestor ancestor_of(int level) {
  switch (level) {
    case 0:
      return Ancestor::board;
    case 10:
      return Ancestor::one_switch;
    case 20:
      return Ancestor::switches;
    case 30:
      return Ancestor::host_bridge;
    case 40:
      return Ancestor::node;
    case 50:
      return Ancestor::system;
    default:
      return Ancestor::unknown;
  }
}

class Survey {
 public:
  explicit Survey(const nvml::Library& library) : library_(library) {}

  NvmlReport take() {
    char text[nvml::kTextSize] = {};
    if (library_.driver_version != nullptr &&
        library_.driver_version(text, sizeof text - 1) == kSuccess) {
      report_.driver = clean(text);
    }
    if (report_.driver.empty()) report_.driver = "unknown";
    unsigned count = 0;
    if (const nvml::Return result = library_.count(&count); result != kSuccess) {
      lose("GPUs cannot be counted", result);
      return std::move(report_);
    }
    if (count > kMostGpus) {
      report_.lost.push_back(fmt::format("NVML counts {} GPUs: {} are read", count, kMostGpus));
      count = kMostGpus;
    }
    for (unsigned i = 0; i < count; ++i) add_gpu(i);
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      add_links(i);
      add_peers(i);
    }
    return std::move(report_);
  }

 private:
  void lose(const std::string& what, nvml::Return result) {
    report_.lost.push_back(fmt::format("{}: {}", what, library_.words(result)));
  }

  void add_gpu(unsigned index) {
    nvml::Device device = nullptr;
    nvml::PciInfo pci{};
    nvml::Return result = library_.handle(index, &device);
    if (result == kSuccess) result = library_.pci(device, &pci);
    if (result != kSuccess) return lose(fmt::format("GPU {} is left out", index), result);
    NvmlGpu gpu;
    gpu.address = address_of(pci);
    const bool twice = std::any_of(report_.gpus.begin(), report_.gpus.end(),
                                   [&](const auto& other) { return other.address == gpu.address; });
    if (twice || gpu.address.domain == PciAddress::kNoDomain) {
      report_.lost.push_back(
          fmt::format("GPU {} is left out: NVML gives {}", index,
                      twice ? "its PCI address to two" : "no PCI address of it"));
      return;
    }
    describe(device, gpu.uuid, gpu.model, gpu.memory_bytes);
    int major = 0;
    int minor = 0;
    if (library_.capability != nullptr && library_.capability(device, &major, &minor) == kSuccess &&
        major > 0 && major < 100 && minor >= 0 && minor < 10) {
      gpu.sm = 10 * major + minor;
    }
    gpu.pcie_generation = number(library_.pcie_generation, device, 9);
    gpu.pcie_width = number(library_.pcie_width, device, 64);
    gpu.pcie_most_width = number(library_.pcie_most_width, device, 64);
    unsigned long nodes[16] = {};
    if (library_.memory_affinity != nullptr &&
        library_.memory_affinity(device, std::size(nodes), nodes, 0) == kSuccess) {
      for (int word = 0; word < 16 && gpu.numa < 0; ++word) {
        if (nodes[word] != 0) gpu.numa = 64 * word + std::countr_zero(nodes[word]);
      }
    }
    add_instances(device, gpu);
    report_.gpus.push_back(std::move(gpu));
    devices_.push_back(device);
  }

  void describe(nvml::Device device, std::string& uuid, std::string& model,
                std::uint64_t& memory_bytes) const {
    char text[nvml::kTextSize] = {};
    if (library_.uuid != nullptr && library_.uuid(device, text, sizeof text - 1) == kSuccess) {
      uuid = clean(text);
    }
    char name[nvml::kTextSize] = {};
    if (library_.name != nullptr && library_.name(device, name, sizeof name - 1) == kSuccess) {
      model = clean(name);
    }
    nvml::Memory memory{};
    constexpr unsigned long long kMostBytes = 1ULL << 50;
    if (library_.memory != nullptr && library_.memory(device, &memory) == kSuccess &&
        memory.total <= kMostBytes) {
      memory_bytes = memory.total;
    }
  }

  /// A number up to `most`, or 0.
  static int number(nvml::GetNumber ask, nvml::Device device, unsigned most) {
    unsigned value = 0;
    const bool told = ask != nullptr && ask(device, &value) == kSuccess;
    return told && value <= most ? static_cast<int>(value) : 0;
  }

  void add_instances(nvml::Device device, NvmlGpu& gpu) const {
    unsigned now = 0;
    unsigned later = 0;
    gpu.mig = library_.mig_mode != nullptr && library_.mig_mode(device, &now, &later) == kSuccess &&
              now == 1;
    if (!gpu.mig || library_.mig_device == nullptr) return;
    constexpr int kMostInstances = 64;
    const int most = number(library_.mig_most, device, kMostInstances);
    for (int i = 0; i < most; ++i) {
      nvml::Device slice = nullptr;
      if (library_.mig_device(device, static_cast<unsigned>(i), &slice) != kSuccess) continue;
      NvmlInstance instance;
      describe(slice, instance.uuid, instance.model, instance.memory_bytes);
      gpu.instances.push_back(std::move(instance));
    }
  }

  void add_links(std::size_t index) {
    if (library_.link_state == nullptr || library_.link_remote == nullptr) return;
    NvmlGpu& gpu = report_.gpus[index];
    for (unsigned i = 0; i < nvml::kMaxLinks; ++i) {
      int active = 0;
      nvml::PciInfo remote{};
      if (library_.link_state(devices_[index], i, &active) != kSuccess || active == 0) continue;
      const nvml::Return result = library_.link_remote(devices_[index], i, &remote);
      if (result != kSuccess) {
        lose(fmt::format("NVLink {} of GPU {} is left out: its other end is unknown", i, index),
             result);
        continue;
      }
      NvmlLink link;
      link.index = i;
      link.remote = address_of(remote);
      link.end = end_of(index, i, link.remote);
      link.version = version_of(index, i);
      link.mb_s = speed_of(index, i);
      gpu.links.push_back(link);
    }
  }

  [[nodiscard]] unsigned version_of(std::size_t index, unsigned link) const {
    unsigned version = 0;
    const bool told = library_.link_version != nullptr &&
                      library_.link_version(devices_[index], link, &version) == kSuccess;
    return told && version < 100 ? version : 0;
  }

  [[nodiscard]] unsigned speed_of(std::size_t index, unsigned link) const {
    nvml::FieldValue field{};
    field.field = nvml::kNvlinkSpeed;
    field.scope = link;
    const bool told = library_.fields != nullptr &&
                      library_.fields(devices_[index], 1, &field) == kSuccess &&
                      field.result == kSuccess && field.value_type == nvml::kUnsignedInt;
    return told && field.value.whole < 1000000 ? field.value.whole : 0;
  }

  /// In virtual machines the switch has an address that is no device's.
  [[nodiscard]] GpuLink::End end_of(std::size_t index, unsigned link, const PciAddress& to) const {
    const bool gpu = std::any_of(report_.gpus.begin(), report_.gpus.end(),
                                 [&](const NvmlGpu& other) { return other.address == to; });
    if (gpu) return GpuLink::End::gpu;
    int type = nvml::remote_switch;
    if (library_.link_type != nullptr) library_.link_type(devices_[index], link, &type);
    if (type == nvml::remote_gpu) return GpuLink::End::gpu;  // one that was left out
    return type == nvml::remote_npu ? GpuLink::End::numa : GpuLink::End::gpu_switch;
  }

  void add_peers(std::size_t index) {
    NvmlGpu& gpu = report_.gpus[index];
    if (devices_.size() < 2) return;
    for (std::size_t other = 0; other < devices_.size(); ++other) {
      NvmlPeer peer;
      if (other != index) {
        int level = -1;
        if (library_.ancestor != nullptr &&
            library_.ancestor(devices_[index], devices_[other], &level) == kSuccess) {
          peer.ancestor = ancestor_of(level);
        }
        peer.read = access(index, other, nvml::p2p_read);
        peer.write = access(index, other, nvml::p2p_write);
      }
      gpu.peers.push_back(peer);
    }
  }

  [[nodiscard]] PeerAccess access(std::size_t index, std::size_t other, nvml::P2pCap cap) const {
    int status = -1;
    const bool told = library_.p2p != nullptr &&
                      library_.p2p(devices_[index], devices_[other], cap, &status) == kSuccess;
    return told ? access_of(status) : PeerAccess::unknown;
  }

  const nvml::Library& library_;
  NvmlReport report_;
  std::vector<nvml::Device> devices_;  // of report_.gpus
};

}  // namespace

NvmlReport nvml_report() {
  nvml::Library library;
  std::string why;
  if (library.open(why)) return Survey(library).take();
  NvmlReport report;
  if (!why.empty()) report.lost.push_back(std::move(why));
  return report;
}

std::string contradiction(const NvmlReport& report) {
  if (report.gpus.size() > kMostGpus) return fmt::format("more than {} GPUs", kMostGpus);
  for (std::size_t i = 0; i < report.gpus.size(); ++i) {
    const NvmlGpu& gpu = report.gpus[i];
    for (std::size_t j = 0; j < i; ++j) {
      if (report.gpus[j].address == gpu.address) {
        return fmt::format("GPUs {} and {} have the same PCI address {}", j, i, gpu.address.text());
      }
    }
    if (gpu.address.domain == PciAddress::kNoDomain) return fmt::format("GPU {} has no address", i);
    if (gpu.links.size() > kMostNvlinks) {
      return fmt::format("GPU {} has {} NVLinks: none has more than {}", i, gpu.links.size(),
                         kMostNvlinks);
    }
    for (std::size_t k = 1; k < gpu.links.size(); ++k) {
      if (gpu.links[k].index <= gpu.links[k - 1].index) {
        return fmt::format("NVLink {} of GPU {} is listed twice or out of order",
                           gpu.links[k].index, i);
      }
    }
    if (!gpu.peers.empty() && gpu.peers.size() != report.gpus.size()) {
      return fmt::format("GPU {} reports its paths to {} of {} GPUs", i, gpu.peers.size(),
                         report.gpus.size());
    }
    if (!gpu.instances.empty() && !gpu.mig) {
      return fmt::format("GPU {} has MIG instances, and MIG is off", i);
    }
  }
  return {};
}

}  // namespace chorus
