// A buffer that was announced to a communicator.
#pragma once

#include <cstddef>

#include "chorus/nccl.h"

namespace chorus::nccl {

struct Window {
  ncclComm* comm = nullptr;
  void* buffer = nullptr;
  std::size_t size_bytes = 0;
};

/// Throws Fault for what is no window of `comm`.
const Window& known_window(ncclComm& comm, ncclWindow_t window);

}  // namespace chorus::nccl
