#include "topology/fake_nvml.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#define FAKE extern "C" __attribute__((visibility("default")))

namespace nvml = chorus::nvml;
using chorus::NvmlGpu;
using chorus::NvmlInstance;
using chorus::PciAddress;

namespace chorus::fake {

Nvml& nvml_library() {
  static Nvml library;
  return library;
}

}  // namespace chorus::fake

namespace {

constexpr nvml::Return kInvalid = 2;
constexpr std::uintptr_t kSlice = 0x1000;  // handles of MIG instances: slice · kSlice + GPU

auto& library() { return chorus::fake::nvml_library(); }

std::uintptr_t number(nvml::Device device) { return reinterpret_cast<std::uintptr_t>(device); }

NvmlGpu* gpu_of(nvml::Device device) {
  auto& gpus = library().machine.gpus;
  const std::uintptr_t index = number(device) % kSlice - 1;
  return index < gpus.size() ? &gpus[index] : nullptr;
}

/// Whether a call fails, and with what; a handle that was never given out is the caller's fault.
nvml::Return verdict(const char* function) {
  if (library().running <= 0) return 1;  // uninitialized
  const auto it = library().fails.find(function);
  return it == library().fails.end() ? nvml::kSuccess : it->second;
}

bool lies(const char* function) { return library().lies.count(function) > 0; }

nvml::Return put(const char* function, const std::string& text, char* buffer, unsigned size) {
  if (const nvml::Return bad = verdict(function); bad != nvml::kSuccess) return bad;
  if (lies(function)) {
    std::memset(buffer, 0xff, size);
    return nvml::kSuccess;
  }
  if (text.size() + 1 > size) return 7;  // insufficient size
  std::memcpy(buffer, text.c_str(), text.size() + 1);
  return nvml::kSuccess;
}

nvml::Return put(const char* function, nvml::Device device, int NvmlGpu::*member, unsigned* value) {
  if (const nvml::Return bad = verdict(function); bad != nvml::kSuccess) return bad;
  const NvmlGpu* gpu = gpu_of(device);
  if (gpu == nullptr) return kInvalid;
  *value = lies(function) ? 0xffffffffU : static_cast<unsigned>(gpu->*member);
  return nvml::kSuccess;
}

void put(const PciAddress& address, nvml::PciInfo* pci) {
  *pci = {};
  pci->domain = address.domain;
  pci->bus = address.bus;
  pci->device = address.device;
}

const NvmlInstance* slice_of(nvml::Device device) {
  const std::uintptr_t slice = number(device) / kSlice;
  const NvmlGpu* gpu = gpu_of(device);
  return gpu == nullptr || slice == 0 ? nullptr : &gpu->instances.at(slice - 1);
}

const chorus::NvmlLink* link_of(nvml::Device device, unsigned index) {
  const NvmlGpu* gpu = gpu_of(device);
  if (gpu == nullptr) return nullptr;
  const auto it = std::find_if(gpu->links.begin(), gpu->links.end(),
                               [&](const chorus::NvmlLink& link) { return link.index == index; });
  return it == gpu->links.end() ? nullptr : &*it;
}

}  // namespace

FAKE nvml::Return nvmlInit_v2() {
  ++library().running;
  const nvml::Return result = verdict("nvmlInit_v2");
  if (result != nvml::kSuccess) --library().running;
  return result;
}
FAKE nvml::Return nvmlShutdown() {
  --library().running;
  return nvml::kSuccess;
}
FAKE const char* nvmlErrorString(nvml::Return result) {
  return result == 15 ? "GPU is lost" : result == 4 ? "Insufficient Permissions" : "Some Error";
}
FAKE nvml::Return nvmlSystemGetDriverVersion(char* text, unsigned size) {
  return put("nvmlSystemGetDriverVersion", library().machine.driver, text, size);
}
FAKE nvml::Return nvmlDeviceGetCount_v2(unsigned* count) {
  if (const auto bad = verdict("nvmlDeviceGetCount_v2"); bad != nvml::kSuccess) return bad;
  *count = lies("nvmlDeviceGetCount_v2") ? 0xffffffffU
                                         : static_cast<unsigned>(library().machine.gpus.size());
  return nvml::kSuccess;
}
FAKE nvml::Return nvmlDeviceGetHandleByIndex_v2(unsigned index, nvml::Device* device) {
  if (const auto it = library().lost.find(index); it != library().lost.end()) return it->second;
  if (index >= library().machine.gpus.size()) return kInvalid;
  *device = reinterpret_cast<nvml::Device>(std::uintptr_t{index} + 1);
  return nvml::kSuccess;
}
FAKE nvml::Return nvmlDeviceGetName(nvml::Device device, char* text, unsigned size) {
  const NvmlInstance* slice = slice_of(device);
  return put("nvmlDeviceGetName", slice != nullptr ? slice->model : gpu_of(device)->model, text,
             size);
}
FAKE nvml::Return nvmlDeviceGetUUID(nvml::Device device, char* text, unsigned size) {
  const NvmlInstance* slice = slice_of(device);
  return put("nvmlDeviceGetUUID", slice != nullptr ? slice->uuid : gpu_of(device)->uuid, text,
             size);
}
FAKE nvml::Return nvmlDeviceGetPciInfo_v3(nvml::Device device, nvml::PciInfo* pci) {
  if (const auto bad = verdict("nvmlDeviceGetPciInfo_v3"); bad != nvml::kSuccess) return bad;
  put(gpu_of(device)->address, pci);
  if (lies("nvmlDeviceGetPciInfo_v3")) std::memset(pci, 0xff, sizeof *pci);
  return nvml::kSuccess;
}
FAKE nvml::Return nvmlDeviceGetMemoryInfo(nvml::Device device, nvml::Memory* memory) {
  if (const auto bad = verdict("nvmlDeviceGetMemoryInfo"); bad != nvml::kSuccess) return bad;
  const NvmlInstance* slice = slice_of(device);
  memory->total = slice != nullptr ? slice->memory_bytes : gpu_of(device)->memory_bytes;
  if (lies("nvmlDeviceGetMemoryInfo")) memory->total = ~0ULL;
  return nvml::kSuccess;
}
FAKE nvml::Return nvmlDeviceGetCudaComputeCapability(nvml::Device device, int* major, int* minor) {
  if (const auto bad = verdict("nvmlDeviceGetCudaComputeCapability"); bad != nvml::kSuccess) {
    return bad;
  }
  const bool lie = lies("nvmlDeviceGetCudaComputeCapability");
  *major = lie ? -7 : gpu_of(device)->sm / 10;
  *minor = lie ? 0x7fffffff : gpu_of(device)->sm % 10;
  return nvml::kSuccess;
}
FAKE nvml::Return nvmlDeviceGetMaxPcieLinkGeneration(nvml::Device device, unsigned* value) {
  return put("nvmlDeviceGetMaxPcieLinkGeneration", device, &NvmlGpu::pcie_generation, value);
}
FAKE nvml::Return nvmlDeviceGetMaxPcieLinkWidth(nvml::Device device, unsigned* value) {
  return put("nvmlDeviceGetMaxPcieLinkWidth", device, &NvmlGpu::pcie_most_width, value);
}
FAKE nvml::Return nvmlDeviceGetCurrPcieLinkWidth(nvml::Device device, unsigned* value) {
  return put("nvmlDeviceGetCurrPcieLinkWidth", device, &NvmlGpu::pcie_width, value);
}
FAKE nvml::Return nvmlDeviceGetMemoryAffinity(nvml::Device device, unsigned size,
                                              unsigned long* nodes, unsigned /*scope*/) {
  if (const auto bad = verdict("nvmlDeviceGetMemoryAffinity"); bad != nvml::kSuccess) return bad;
  std::fill_n(nodes, size, 0UL);
  const int numa = gpu_of(device)->numa;
  if (numa < 0) return nvml::kNotSupported;
  nodes[numa / 64] = 1UL << (numa % 64);
  return nvml::kSuccess;
}
FAKE nvml::Return nvmlDeviceGetMigMode(nvml::Device device, unsigned* now, unsigned* later) {
  if (const auto bad = verdict("nvmlDeviceGetMigMode"); bad != nvml::kSuccess) return bad;
  *now = *later = gpu_of(device)->mig ? 1 : 0;
  return nvml::kSuccess;
}
FAKE nvml::Return nvmlDeviceGetMaxMigDeviceCount(nvml::Device /*device*/, unsigned* count) {
  if (const auto bad = verdict("nvmlDeviceGetMaxMigDeviceCount"); bad != nvml::kSuccess) return bad;
  *count = lies("nvmlDeviceGetMaxMigDeviceCount") ? 0xffffffffU : 7;
  return nvml::kSuccess;
}
FAKE nvml::Return nvmlDeviceGetMigDeviceHandleByIndex(nvml::Device device, unsigned index,
                                                      nvml::Device* slice) {
  if (index >= gpu_of(device)->instances.size()) return nvml::kNotFound;
  *slice = reinterpret_cast<nvml::Device>(number(device) + kSlice * (index + 1));
  return nvml::kSuccess;
}
FAKE nvml::Return nvmlDeviceGetNvLinkState(nvml::Device device, unsigned link, int* active) {
  if (const auto bad = verdict("nvmlDeviceGetNvLinkState"); bad != nvml::kSuccess) return bad;
  if (lies("nvmlDeviceGetNvLinkState")) {
    *active = -1;
    return nvml::kSuccess;
  }
  if (link >= 18) return kInvalid;
  *active = link_of(device, link) != nullptr ? 1 : 0;
  return nvml::kSuccess;
}
FAKE nvml::Return nvmlDeviceGetNvLinkVersion(nvml::Device device, unsigned link,
                                             unsigned* version) {
  if (const auto bad = verdict("nvmlDeviceGetNvLinkVersion"); bad != nvml::kSuccess) return bad;
  const auto* found = link_of(device, link);
  *version = lies("nvmlDeviceGetNvLinkVersion") || found == nullptr ? 0xffffffffU : found->version;
  return nvml::kSuccess;
}
FAKE nvml::Return nvmlDeviceGetNvLinkRemotePciInfo_v2(nvml::Device device, unsigned link,
                                                      nvml::PciInfo* pci) {
  const char* self = "nvmlDeviceGetNvLinkRemotePciInfo_v2";
  if (const auto bad = verdict(self); bad != nvml::kSuccess) return bad;
  const auto* found = link_of(device, link);
  if (lies(self) || found == nullptr) {
    std::memset(pci, 0xff, sizeof *pci);
  } else {
    put(found->remote, pci);
  }
  return nvml::kSuccess;
}
FAKE nvml::Return nvmlDeviceGetNvLinkRemoteDeviceType(nvml::Device device, unsigned link,
                                                      int* type) {
  const char* self = "nvmlDeviceGetNvLinkRemoteDeviceType";
  if (const auto bad = verdict(self); bad != nvml::kSuccess) return bad;
  const auto* found = link_of(device, link);
  const bool lie = lies(self) || found == nullptr;
  *type = lie                                              ? 0x7fffffff
          : found->end == chorus::GpuLink::End::gpu        ? nvml::remote_gpu
          : found->end == chorus::GpuLink::End::gpu_switch ? nvml::remote_switch
                                                           : nvml::remote_npu;
  return nvml::kSuccess;
}
FAKE nvml::Return nvmlDeviceGetFieldValues(nvml::Device device, int count,
                                           nvml::FieldValue* values) {
  const char* self = "nvmlDeviceGetFieldValues";
  if (const auto bad = verdict(self); bad != nvml::kSuccess) return bad;
  for (int i = 0; i < count; ++i) {
    const auto* found = link_of(device, values[i].scope);
    values[i].result = found == nullptr && !lies(self) ? nvml::kNotSupported : nvml::kSuccess;
    values[i].value_type = nvml::kUnsignedInt;
    values[i].value.whole = lies(self) || found == nullptr ? 0xffffffffU : found->mb_s;
  }
  return nvml::kSuccess;
}
FAKE nvml::Return nvmlDeviceGetTopologyCommonAncestor(nvml::Device one, nvml::Device other,
                                                      int* level) {
  const char* self = "nvmlDeviceGetTopologyCommonAncestor";
  if (const auto bad = verdict(self); bad != nvml::kSuccess) return bad;
  const auto& peers = gpu_of(one)->peers;
  if (peers.empty()) return nvml::kNotSupported;
  constexpr int kLevels[] = {-1, 0, 10, 20, 30, 40, 50};
  *level =
      lies(self) ? 0x7fffffff : kLevels[static_cast<int>(peers.at(number(other) - 1).ancestor)];
  return nvml::kSuccess;
}
FAKE nvml::Return nvmlDeviceGetP2PStatus(nvml::Device one, nvml::Device other, int cap,
                                         int* status) {
  const char* self = "nvmlDeviceGetP2PStatus";
  if (const auto bad = verdict(self); bad != nvml::kSuccess) return bad;
  const auto& peers = gpu_of(one)->peers;
  if (peers.empty()) return nvml::kNotSupported;
  const auto& peer = peers.at(number(other) - 1);
  const auto access = cap == nvml::p2p_read ? peer.read : peer.write;
  *status = lies(self) ? -5 : static_cast<int>(access) - 1;  // "unknown" is no status
  return nvml::kSuccess;
}
