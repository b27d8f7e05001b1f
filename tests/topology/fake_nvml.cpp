// A libnvidia-ml.so.1 of a machine with two GPUs, a lost one, and a switch.
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "topology/nvml_abi.hpp"

#define FAKE extern "C" __attribute__((visibility("default")))

namespace nvml = chorus::nvml;

namespace {
unsigned index_of(nvml::Device device) {
  return static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(device)) - 1;
}
void fill(unsigned index, nvml::PciInfo* pci) {
  *pci = {};
  pci->domain = index;
  pci->bus = index + 1;
}
}  // namespace

FAKE nvml::Return nvmlInit_v2() { return nvml::kSuccess; }
FAKE nvml::Return nvmlShutdown() { return nvml::kSuccess; }
FAKE nvml::Return nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 3;
  return nvml::kSuccess;
}
FAKE nvml::Return nvmlDeviceGetHandleByIndex_v2(unsigned index, nvml::Device* device) {
  if (index == 2) return 15;  // the GPU is lost
  *device = reinterpret_cast<nvml::Device>(std::uintptr_t{index} + 1);
  return nvml::kSuccess;
}
FAKE nvml::Return nvmlDeviceGetName(nvml::Device /*device*/, char* name, unsigned size) {
  std::snprintf(name, size, "Fake V100");
  return nvml::kSuccess;
}
FAKE nvml::Return nvmlDeviceGetPciInfo_v3(nvml::Device device, nvml::PciInfo* pci) {
  fill(index_of(device), pci);
  return nvml::kSuccess;
}
FAKE nvml::Return nvmlDeviceGetNvLinkState(nvml::Device /*device*/, unsigned link, int* active) {
  if (link >= 6) return 2;  // invalid argument
  *active = link < 3 ? 1 : 0;
  return nvml::kSuccess;
}
FAKE nvml::Return nvmlDeviceGetNvLinkVersion(nvml::Device /*device*/, unsigned /*link*/,
                                             unsigned* version) {
  *version = 2;
  return nvml::kSuccess;
}
FAKE nvml::Return nvmlDeviceGetNvLinkRemotePciInfo_v2(nvml::Device device, unsigned link,
                                                      nvml::PciInfo* pci) {
  fill(link < 2 ? 1 - index_of(device) : 77, pci);
  return nvml::kSuccess;
}
FAKE nvml::Return nvmlDeviceGetNvLinkRemoteDeviceType(nvml::Device /*device*/, unsigned link,
                                                      int* type) {
  *type = link < 2 ? nvml::remote_gpu : nvml::remote_switch;
  return nvml::kSuccess;
}
