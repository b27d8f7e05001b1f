#include "topology/discover/nvml/library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

namespace chorus::nvml {

void Library::Close::operator()(void* library) const { ::dlclose(library); }

Library::~Library() {
  if (running_) shutdown_();
}

template <class Function>
bool Library::find(const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library_.get(), symbol));
  return function != nullptr;
}

bool Library::find_all() {
  find("nvmlErrorString", error_string);
  find("nvmlSystemGetDriverVersion", driver_version);
  find("nvmlDeviceGetName", name);
  find("nvmlDeviceGetUUID", uuid);
  find("nvmlDeviceGetMemoryInfo", memory);
  find("nvmlDeviceGetCudaComputeCapability", capability);
  find("nvmlDeviceGetMaxPcieLinkGeneration", pcie_generation);
  find("nvmlDeviceGetMaxPcieLinkWidth", pcie_most_width);
  find("nvmlDeviceGetCurrPcieLinkWidth", pcie_width);
  find("nvmlDeviceGetMemoryAffinity", memory_affinity);
  find("nvmlDeviceGetMigMode", mig_mode);
  find("nvmlDeviceGetMaxMigDeviceCount", mig_most);
  find("nvmlDeviceGetMigDeviceHandleByIndex", mig_device);
  find("nvmlDeviceGetNvLinkState", link_state);
  find("nvmlDeviceGetNvLinkVersion", link_version);
  find("nvmlDeviceGetNvLinkRemotePciInfo_v2", link_remote);
  find("nvmlDeviceGetNvLinkRemoteDeviceType", link_type);
  find("nvmlDeviceGetFieldValues", fields);
  find("nvmlDeviceGetTopologyCommonAncestor", ancestor);
  find("nvmlDeviceGetP2PStatus", p2p);
  return find("nvmlInit_v2", init_) && find("nvmlShutdown", shutdown_) &&
         find("nvmlDeviceGetCount_v2", count) && find("nvmlDeviceGetHandleByIndex_v2", handle) &&
         find("nvmlDeviceGetPciInfo_v3", pci);
}

bool Library::open(std::string& why) {
  library_.reset(::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL));
  if (!library_) return false;
  if (!find_all()) {
    why = "libnvidia-ml.so.1 lacks functions: update NVIDIA's driver";
    return false;
  }
  const Return result = init_();
  running_ = result == kSuccess;
  // A library without a driver is what images for machines with and without GPUs look like.
  if (!running_ && result != kDriverNotLoaded) {
    why = fmt::format("NVML does not start: {}: does nvidia-smi work?", words(result));
  }
  return running_;
}

std::string Library::words(Return result) const {
  const char* text = error_string == nullptr ? nullptr : error_string(result);
  return text == nullptr ? fmt::format("error {}", result)
                         : fmt::format("{} (error {})", text, result);
}

}  // namespace chorus::nvml
