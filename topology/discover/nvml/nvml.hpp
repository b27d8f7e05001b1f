// What NVIDIA's management library says of this machine's GPUs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "topology/discover/box.hpp"

namespace chorus {

/// One active NVLink of a GPU.
struct NvmlLink {
  unsigned index = 0;    ///< of the GPU's links
  unsigned version = 0;  ///< as NVML numbers them (7 is NVLink 5); 0: unknown
  unsigned mb_s = 0;     ///< raw rate of one direction in 10⁶ B/s; 0: unknown
  GpuLink::End end = GpuLink::End::gpu_switch;
  PciAddress remote;

  bool operator==(const NvmlLink&) const = default;
};

/// Where the ways of two GPUs meet, the nearest first, as nvidia-smi topo -m abbreviates it.
enum class Ancestor : std::uint8_t {
  unknown,
  board,        ///< PSB: two GPUs of one board
  one_switch,   ///< PIX
  switches,     ///< PXB
  host_bridge,  ///< PHB
  node,         ///< NODE
  system,       ///< SYS
};

/// Whether a GPU may access another one's memory.
enum class PeerAccess : std::uint8_t {
  unknown,
  ok,
  chipset,        ///< the chipset does not pass it on
  gpu,            ///< the GPU cannot
  bridge,         ///< the I/O hub between them does not pass it on
  disabled,       ///< by a setting of the driver
  not_supported,  ///< and no reason given
  broken,         ///< offered, but data that were sent did not arrive intact
};

struct NvmlPeer {
  Ancestor ancestor = Ancestor::unknown;
  PeerAccess read = PeerAccess::unknown;
  PeerAccess write = PeerAccess::unknown;

  bool operator==(const NvmlPeer&) const = default;
};

/// A slice of a GPU in MIG mode: a device of its own to CUDA.
struct NvmlInstance {
  std::string uuid;
  std::string model;
  std::uint64_t memory_bytes = 0;

  bool operator==(const NvmlInstance&) const = default;
};

struct NvmlGpu {
  PciAddress address;
  std::string uuid;
  std::string model;
  std::uint64_t memory_bytes = 0;  ///< 0: unknown, as all figures below
  int sm = 0;                      ///< compute capability 9.0 is 90
  int pcie_generation = 0;  ///< the most that GPU and slot can: power saving lowers it at rest
  int pcie_width = 0;       ///< lanes in use
  int pcie_most_width = 0;  ///< lanes that GPU and slot could use
  int numa = -1;            ///< the memory beside it, as the kernel numbers it; -1: unknown
  bool mig = false;
  std::vector<NvmlInstance> instances;  ///< in MIG mode
  std::vector<NvmlLink> links;
  std::vector<NvmlPeer>
      peers;  ///< by index of the other GPU, and an unknown one for itself; or none

  bool operator==(const NvmlGpu&) const = default;
};

struct NvmlReport {
  std::string driver;             ///< its version; empty: no driver
  std::vector<NvmlGpu> gpus;      ///< in the library's order, that of nvidia-smi
  std::vector<std::string> lost;  ///< what it could not tell, as sentences that name the GPU

  bool operator==(const NvmlReport&) const = default;
};

/// More GPUs than a machine has, and more links than a GPU has.
inline constexpr int kMostGpus = 256;
inline constexpr unsigned kMostNvlinks = 64;

/// Opens libnvidia-ml.so.1 for the time of the call. Empty where there is no driver; what a driver
/// refuses to tell is left out and named. Never throws for what the library does.
[[nodiscard]] NvmlReport nvml_report();

/// First way in which a report contradicts itself (an address given twice, a peer that does not
/// exist, …), as a sentence; empty if sound. What nvml_report() returns is sound.
[[nodiscard]] std::string contradiction(const NvmlReport& report);

/// Puts the report on the machine that hwloc found: GPUs with their numbers, models, PCIe rates and
/// NVLinks, which replace hwloc's. GPUs of the same maker that NVML does not list are not ours to
/// use (another container's, or lost) and go; those that hwloc does not know (its PCI support may
/// be missing) are placed by what NVML says of their ways. Returns what is wrong with the machine,
/// as sentences for people.
[[nodiscard]] std::vector<std::string> add_nvml(Box& box, const NvmlReport& report);

}  // namespace chorus
