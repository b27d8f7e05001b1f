// Rates and latencies assumed where a source names a part but not its speed
// (docs/topologies.md: where each comes from).
#pragma once

#include <string_view>

namespace chorus {

/// Of a PCIe link's nominal bytes per second, what arrives: NCCL plans with 12 GB/s for gen 3 x16.
inline constexpr double kPcieEfficiency = 12.0 / 15.754;
inline constexpr double kPcieUnknownGbS = 12;
inline constexpr double kPcieHopUs = 0.5;
inline constexpr double kSocketHopUs = 0.5;
inline constexpr double kNicHopUs = 0.35;
inline constexpr double kGpuLinkUs = 0.7;  ///< GPU to GPU, also through a GPU switch
/// One core copying through shared memory, of hosts elsewhere: HostRates has what is measured.
inline constexpr double kCoreGbS = 8;
inline constexpr double kCoreHopUs = 0.15;
inline constexpr double kInterfaceUnknownGbS = 1.25;  ///< 10 Gb/s
inline constexpr double kInfinibandPathUs = 1.7;      ///< host to host, NICs included
inline constexpr double kEthernetPathUs = 15;
inline constexpr double kSwitchHopUs = 0.3;  ///< one more network switch: cable and crossbar

/// One NVLink, one direction, by GPU architecture (sm_70 is 70); 0 if unknown.
[[nodiscard]] constexpr double nvlink_gb_s(int sm) {
  if (sm >= 100) return 50;
  if (sm == 86 || sm == 89) return 14.0625;
  if (sm >= 70) return 25;
  if (sm >= 60) return 20;
  return 0;
}
/// One NVLink, one direction, by NVLink generation as NVML reports it; 0 if unknown.
[[nodiscard]] constexpr double nvlink_gb_s_of_version(unsigned version) {
  if (version == 1) return 20;
  if (version >= 2 && version <= 6) return 25;
  if (version == 7) return 50;
  return version >= 8 ? 100 : 0;
}
inline constexpr double kXgmiGbS = 50;

/// One PCIe lane, one direction, after encoding, by generation; 0 if unknown.
[[nodiscard]] constexpr double pcie_lane_gb_s(int generation) {
  constexpr double kLane[] = {0, 0.25, 0.5, 0.98462, 1.96923, 3.93846, 7.5625};
  return generation >= 1 && generation <= 6 ? kLane[generation] : 0;
}

/// Between two sockets, each direction, as NCCL plans it for this processor.
[[nodiscard]] double socket_gb_s(std::string_view vendor, int family, int model,
                                 std::string_view name);

}  // namespace chorus
