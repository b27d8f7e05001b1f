// A buffer that was announced to a communicator.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "chorus/nccl.h"
#include "runtime/gpu/communicator.hpp"

namespace chorus::nccl {

struct Body;

struct Window {
  ncclComm* comm = nullptr;
  void* buffer = nullptr;
  std::size_t size_bytes = 0;
  int device = -1;  ///< of GPU memory; -1: the host's, or no more is known
};

/// Throws Fault for what is no window of `comm`.
const Window& known_window(ncclComm& comm, ncclWindow_t window);

/// Whose memory this is, without asking the driver: that of ncclMemAlloc is not freed but by
/// ncclMemFree, and what was announced to `comm` not before it is withdrawn. Nothing of other
/// memory, which may be the GPU's now and the host's later.
[[nodiscard]] std::optional<MemoryPlace> known_place(ncclComm& comm, const void* memory);

/// Lets the GPUs of the communicator's other ranks reach the memory of ncclMemAlloc that this lies
/// in, if it does, once. Waits for nobody.
void share_given(const std::shared_ptr<Body>& body, const void* memory);

}  // namespace chorus::nccl
