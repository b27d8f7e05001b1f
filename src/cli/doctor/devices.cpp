// What stands between GPUs and adapters: IOMMU, ACS, NUMA nodes; and the GPUs themselves.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "cli/doctor/checks.hpp"

namespace chorus::doctor {
namespace {

bool is_bound(const Scene& scene, const Pci& pci) {
  return pci.is_gpu() ||
         std::any_of(scene.adapters.begin(), scene.adapters.end(), [&](const Adapter& adapter) {
           return adapter.pci && adapter.pci->address == pci.address;
         });
}

/// The control register of Access Control Services in a function's configuration space (PCI Express
/// Base Specification, extended capability 0x000d); nothing if it has none, or cannot be read:
/// others than root get the first 64 bytes.
std::optional<unsigned> acs_control(const std::string& config) {
  constexpr std::size_t kExtended = 0x100;
  constexpr unsigned kAcs = 0x000d;
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(config[at]); };
  std::size_t at = kExtended;
  for (int steps = 0; steps < 64 && at >= kExtended && at + 8 <= config.size(); ++steps) {
    const unsigned id = byte(at) | static_cast<unsigned>(byte(at + 1)) << 8;
    if (id == kAcs) return byte(at + 6) | static_cast<unsigned>(byte(at + 7)) << 8;
    at = byte(at + 2) >> 4 | static_cast<std::size_t>(byte(at + 3)) << 4;
  }
  return std::nullopt;
}

void check_acs(const Scene& scene, Findings& findings) {
  // Source validation, translation blocking, request and completion redirect, upstream forwarding:
  // the redirects send what one device tells another up to the root.
  constexpr unsigned kRedirects = 0b01100;
  std::set<std::string> redirecting;
  bool readable = false;
  int devices = 0;
  for (const Pci& pci : scene.pci) {
    if (!is_bound(scene, pci)) continue;
    ++devices;
    for (fs::path above = pci.path.parent_path(); above.has_filename();
         above = above.parent_path()) {
      const auto address = PciAddress::parse(above.filename().string());
      if (!address) break;
      const std::string config = scene.files.text(above / "config");
      readable = readable || config.size() > 256;
      const auto control = acs_control(config);
      if (control && (*control & kRedirects) != 0) redirecting.insert(address->text());
    }
  }
  if (devices < 2) return;
  if (!redirecting.empty()) {
    findings.push_back(
        {"acs", Severity::warning,
         fmt::format("Access Control Services redirect at {}", fmt::join(redirecting, ", ")),
         "traffic between GPUs and adapters below one PCIe switch goes through the processor, or "
         "is lost",
         fmt::format(
             "setpci -s {} ECAP_ACS+0x6.w=0000 (each, after every boot), or off in the BIOS; "
             "not where virtual machines are given the devices",
             *redirecting.begin())});
  } else if (!readable) {
    findings.push_back(
        {"acs", Severity::note, "ACS settings are readable by root only",
         "where they redirect, GPUs and adapters reach each other slowly or not at all",
         "sudo chorus doctor"});
  }
}

void check_iommu(const Scene& scene, Findings& findings) {
  std::vector<std::string> translated;
  for (const Pci& pci : scene.pci) {
    if (!is_bound(scene, pci)) continue;
    const std::string type = scene.files.line(pci.path / "iommu_group/type");
    if (type.starts_with("DMA")) translated.push_back(pci.address.text());
  }
  if (translated.empty()) return;
  findings.push_back(
      {"iommu", Severity::warning,
       fmt::format("the IOMMU translates for {}", fmt::join(translated, ", ")),
       "peer-to-peer over PCIe is slow then, and on some machines corrupts data",
       "iommu=pt (with intel_iommu=on or amd_iommu=on if virtual machines need it) on the kernel's "
       "command line"});
}

void check_distance(const Scene& scene, Findings& findings) {
  std::set<int> with_adapter;
  for (const Adapter& adapter : scene.adapters) {
    if (adapter.pci && adapter.pci->numa >= 0) with_adapter.insert(adapter.pci->numa);
  }
  if (with_adapter.empty()) return;
  std::vector<std::string> far;
  for (const Pci& pci : scene.pci) {
    if (pci.is_gpu() && pci.numa >= 0 && with_adapter.count(pci.numa) == 0) {
      far.push_back(fmt::format("{} (node {})", pci.address.text(), pci.numa));
    }
  }
  if (far.empty()) return;
  findings.push_back(
      {"gpu-nic-distance", Severity::note,
       fmt::format("no RDMA adapter on the NUMA node of GPU {}", fmt::join(far, ", ")),
       "their data crosses the sockets' link, a third or so of PCIe's rate",
       "move an adapter to a slot of that socket; chorus topo shows the slots"});
}

}  // namespace

void check_pcie(const Scene& scene, Findings& findings) {
  check_iommu(scene, findings);
  check_acs(scene, findings);
  check_distance(scene, findings);
}

void check_gpus(const Scene& scene, Findings& findings) {
  std::vector<std::string> idle;
  for (const Pci& pci : scene.pci) {
    if (pci.is_gpu() && pci.driver != "nvidia") {
      idle.push_back(fmt::format("{}{}", pci.address.text(),
                                 pci.driver.empty() ? "" : " (driver " + pci.driver + ")"));
    }
  }
  if (!idle.empty()) {
    findings.push_back({"gpu-driver", Severity::warning,
                        fmt::format("NVIDIA's driver does not serve {}", fmt::join(idle, ", ")),
                        "CUDA does not see them",
                        "install NVIDIA's driver; modprobe nvidia; dmesg"});
  }
  if (idle.empty() && scene.nvml.gpus.empty() && scene.files.has("proc/driver/nvidia/version")) {
    findings.push_back({"nvml", Severity::warning,
                        "the kernel has NVIDIA's driver, and its library lists no GPU",
                        "a container must be given the library and the devices",
                        "docker run --gpus all (NVIDIA's container toolkit); nvidia-smi"});
  }
  Box nothing;
  nothing.numa_nodes.resize(1);
  for (const std::string& remark : add_nvml(nothing, scene.nvml)) {
    findings.push_back(
        {"gpu", Severity::warning, remark, "NVML and the machine's other GPUs suggest more", ""});
  }
}

}  // namespace chorus::doctor
