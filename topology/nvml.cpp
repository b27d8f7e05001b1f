#include "topology/nvml.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <memory>

#include "topology/nvml_abi.hpp"
#include "topology/rates.hpp"

namespace chorus {
namespace {

struct Close {
  void operator()(void* library) const { ::dlclose(library); }
};

class Nvml {
 public:
  /// False if the library, the driver or a function is missing.
  bool open() {
    library_.reset(::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL));
    if (!library_) return false;
    const bool found = find("nvmlInit_v2", init_) && find("nvmlShutdown", shutdown_) &&
                       find("nvmlDeviceGetCount_v2", count_) &&
                       find("nvmlDeviceGetHandleByIndex_v2", handle_) &&
                       find("nvmlDeviceGetName", name_) && find("nvmlDeviceGetPciInfo_v3", pci_) &&
                       find("nvmlDeviceGetNvLinkState", link_state_) &&
                       find("nvmlDeviceGetNvLinkVersion", link_version_) &&
                       find("nvmlDeviceGetNvLinkRemotePciInfo_v2", link_remote_);
    find("nvmlDeviceGetNvLinkRemoteDeviceType", link_remote_type_);  // absent before driver 460
    running_ = found && init_() == nvml::kSuccess;
    return running_;
  }
  Nvml() = default;
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  ~Nvml() {
    if (running_) shutdown_();
  }

  NvmlReport report() const {
    NvmlReport report;
    unsigned count = 0;
    if (count_(&count) != nvml::kSuccess) return report;
    std::vector<nvml::Device> devices;
    for (unsigned i = 0; i < count; ++i) {
      nvml::Device device = nullptr;
      nvml::PciInfo pci{};
      if (handle_(i, &device) != nvml::kSuccess || pci_(device, &pci) != nvml::kSuccess) continue;
      char name[nvml::kNameSize] = {};
      if (name_(device, name, sizeof name - 1) != nvml::kSuccess) name[0] = '\0';
      report.gpus.push_back({address(pci), name});
      devices.push_back(device);
    }
    for (std::size_t i = 0; i < devices.size(); ++i) add_links(devices[i], i, report);
    return report;
  }

 private:
  template <class Function>
  bool find(const char* name, Function& function) {
    function = reinterpret_cast<Function>(::dlsym(library_.get(), name));
    return function != nullptr;
  }

  static PciAddress address(const nvml::PciInfo& pci) {
    return {pci.domain, pci.bus, pci.device, 0};
  }

  void add_links(nvml::Device device, std::size_t index, NvmlReport& report) const {
    for (unsigned link = 0; link < nvml::kMaxLinks; ++link) {
      int active = 0;
      if (link_state_(device, link, &active) != nvml::kSuccess) continue;
      unsigned version = 0;
      nvml::PciInfo remote{};
      if (active == 0 || link_version_(device, link, &version) != nvml::kSuccess) continue;
      if (link_remote_(device, link, &remote) != nvml::kSuccess) continue;
      GpuLink found;
      found.from = report.gpus[index].address;
      found.to = address(remote);
      found.gb_s = nvlink_gb_s_of_version(version);
      found.end = end_of(device, link, found.to, report);
      report.links.push_back(std::move(found));
    }
  }

  /// In virtual machines the switch has an address that is no device's.
  GpuLink::End end_of(nvml::Device device, unsigned link, const PciAddress& to,
                      const NvmlReport& report) const {
    const bool gpu = std::any_of(report.gpus.begin(), report.gpus.end(),
                                 [&](const NvmlGpu& other) { return other.address == to; });
    if (gpu) return GpuLink::End::gpu;
    int type = nvml::remote_switch;
    if (link_remote_type_ != nullptr) link_remote_type_(device, link, &type);
    return type == nvml::remote_npu ? GpuLink::End::numa : GpuLink::End::gpu_switch;
  }

  std::unique_ptr<void, Close> library_;
  bool running_ = false;
  nvml::Init init_ = nullptr;
  nvml::Shutdown shutdown_ = nullptr;
  nvml::GetCount count_ = nullptr;
  nvml::GetHandle handle_ = nullptr;
  nvml::GetName name_ = nullptr;
  nvml::GetPciInfo pci_ = nullptr;
  nvml::GetLinkState link_state_ = nullptr;
  nvml::GetLinkVersion link_version_ = nullptr;
  nvml::GetLinkRemote link_remote_ = nullptr;
  nvml::GetLinkRemoteType link_remote_type_ = nullptr;
};

}  // namespace

NvmlReport nvml_report() {
  Nvml nvml;
  return nvml.open() ? nvml.report() : NvmlReport();
}

}  // namespace chorus
