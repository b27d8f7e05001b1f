// A collective or a message as the program asks for it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "nccl/comm.hpp"

namespace chorus::nccl {

/// What ncclCollConfig_t asks of one call.
struct CallConfig {
  std::string schedule = {};  ///< its name; empty: the selected one
  bool forced = true;         ///< refuse where that cannot serve
  void* launch_event = nullptr;
};

/// Reads as much of it as its size says. Throws Fault naming the field that is out of range.
[[nodiscard]] CallConfig read_call_config(const ncclCollConfig_t* given);

/// A call as it comes, before anything of it is believed.
struct Asked {
  std::string_view name;
  Call::Kind kind;
  const void* send = nullptr;
  void* recv = nullptr;
  std::size_t count = 0;
  ncclDataType_t type = ncclInt8;
  ncclRedOp_t op = ncclSum;
  int peer = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  const ncclCollConfig_t* config = nullptr;
};

/// Judges and runs it, or adds it to the thread's group.
ncclResult_t run(const Asked& asked);

}  // namespace chorus::nccl
