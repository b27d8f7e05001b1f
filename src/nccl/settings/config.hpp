// ncclConfig_t, of whichever version the caller was built with.
#pragma once

#include <string>

#include "chorus/nccl.h"

namespace chorus::nccl {

/// What a communicator was asked to be.
struct Config {
  bool blocking = true;
  std::string name;  ///< commName
  std::string net;   ///< netName
};

/// Reads `given` (null: `inherited`) as far as its size and version go. Fields that are undefined
/// keep those of `inherited`. Throws Fault naming the field that is out of range.
[[nodiscard]] Config read_config(const ncclConfig_t* given, const Config& inherited);

}  // namespace chorus::nccl
