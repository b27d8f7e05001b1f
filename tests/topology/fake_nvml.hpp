// A libnvidia-ml.so.1 without a driver: it answers what a test told it to, refuses or lies.
#pragma once

#include <map>
#include <string>

#include "topology/discover/nvml/abi.hpp"
#include "topology/discover/nvml/nvml.hpp"

namespace chorus::fake {

struct Nvml {
  NvmlReport machine;
  /// Functions that fail, and with what.
  std::map<std::string, nvml::Return> fails;
  /// Functions that succeed and answer rubbish: the largest numbers, texts without an end,
  /// addresses of nothing.
  std::map<std::string, bool> lies;
  std::map<unsigned, nvml::Return> lost;  ///< GPUs whose handles cannot be had
  int running = 0;                        ///< calls of init less those of shutdown
};

/// The one library of this process.
Nvml& nvml_library();

}  // namespace chorus::fake
