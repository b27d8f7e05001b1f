// The functions of NVML that Chorus calls, as NVIDIA documents them, so that neither its header nor
// its library is needed to build.
#pragma once

#include <cstdint>

namespace chorus::nvml {

using Device = void*;
using Return = int;
inline constexpr Return kSuccess = 0;
inline constexpr Return kNotSupported = 3;
inline constexpr Return kNotFound = 6;
inline constexpr Return kDriverNotLoaded = 9;

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

struct Memory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

struct FieldValue {
  unsigned field;
  unsigned scope;  // which link
  long long timestamp;
  long long latency_us;
  int value_type;
  Return result;
  union {
    double real;
    unsigned whole;
    unsigned long long wide;
  } value;
};
static_assert(sizeof(FieldValue) == 40);
inline constexpr unsigned kNvlinkSpeed = 164;  // 10⁶ B/s of a link's direction
inline constexpr int kUnsignedInt = 1;

inline constexpr unsigned kMaxLinks = 36;
inline constexpr unsigned kTextSize = 96;

enum RemoteType : int { remote_gpu = 0, remote_npu = 1, remote_switch = 2 };
enum P2pCap : int { p2p_read = 0, p2p_write = 1 };

using Init = Return (*)();
using Shutdown = Return (*)();
using ErrorString = const char* (*)(Return);
using GetVersion = Return (*)(char*, unsigned);
using GetCount = Return (*)(unsigned*);
using GetHandle = Return (*)(unsigned, Device*);
using GetText = Return (*)(Device, char*, unsigned);
using GetPciInfo = Return (*)(Device, PciInfo*);
using GetMemory = Return (*)(Device, Memory*);
using GetCapability = Return (*)(Device, int*, int*);
using GetNumber = Return (*)(Device, unsigned*);
using GetAffinity = Return (*)(Device, unsigned, unsigned long*, unsigned);
using GetMigMode = Return (*)(Device, unsigned*, unsigned*);
using GetMigDevice = Return (*)(Device, unsigned, Device*);
using GetLinkState = Return (*)(Device, unsigned, int*);
using GetLinkNumber = Return (*)(Device, unsigned, unsigned*);
using GetLinkRemote = Return (*)(Device, unsigned, PciInfo*);
using GetLinkType = Return (*)(Device, unsigned, int*);
using GetFields = Return (*)(Device, int, FieldValue*);
using GetAncestor = Return (*)(Device, Device, int*);
using GetP2p = Return (*)(Device, Device, int, int*);

}  // namespace chorus::nvml
