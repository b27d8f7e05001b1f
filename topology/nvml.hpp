// NVLinks as NVIDIA's management library reports them.
#pragma once

#include <string>
#include <vector>

#include "topology/box.hpp"

namespace chorus {

struct NvmlGpu {
  PciAddress address;
  std::string model;
};

struct NvmlReport {
  std::vector<NvmlGpu> gpus;  ///< in the library's order, that of nvidia-smi
  std::vector<GpuLink> links;
};

/// Opens libnvidia-ml.so.1 for the time of the call. Empty where there is no driver or no GPU.
[[nodiscard]] NvmlReport nvml_report();

}  // namespace chorus
