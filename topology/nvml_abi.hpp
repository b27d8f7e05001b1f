// The few functions of NVML that Chorus calls, as NVIDIA documents them, so that neither its
// header nor its library is needed to build.
#pragma once

namespace chorus::nvml {

using Device = void*;
using Return = int;  // 0: success
inline constexpr Return kSuccess = 0;

struct PciInfo {
  char bus_id_legacy[16];
  unsigned domain;
  unsigned bus;
  unsigned device;
  unsigned pci_device_id;
  unsigned pci_subsystem_id;
  char bus_id[32];
};
static_assert(sizeof(PciInfo) == 68);

inline constexpr unsigned kMaxLinks = 36;
inline constexpr unsigned kNameSize = 96;

enum RemoteType : int { remote_gpu = 0, remote_npu = 1, remote_switch = 2 };

using Init = Return (*)();                                       // nvmlInit_v2
using Shutdown = Return (*)();                                   // nvmlShutdown
using GetCount = Return (*)(unsigned*);                          // nvmlDeviceGetCount_v2
using GetHandle = Return (*)(unsigned, Device*);                 // …GetHandleByIndex_v2
using GetName = Return (*)(Device, char*, unsigned);             // nvmlDeviceGetName
using GetPciInfo = Return (*)(Device, PciInfo*);                 // nvmlDeviceGetPciInfo_v3
using GetLinkState = Return (*)(Device, unsigned, int*);         // …GetNvLinkState
using GetLinkVersion = Return (*)(Device, unsigned, unsigned*);  // …GetNvLinkVersion
using GetLinkRemote = Return (*)(Device, unsigned, PciInfo*);    // …GetNvLinkRemotePciInfo_v2
using GetLinkRemoteType = Return (*)(Device, unsigned, int*);    // …GetNvLinkRemoteDeviceType

}  // namespace chorus::nvml
