// The way to collectives over GPU memory.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "chorus/communicator.hpp"
#include "runtime/device_communicator.hpp"

namespace chorus::nccl {

/// A communicator's end on its GPU: DeviceCommunicator, where this library has it.
class Gpu {
 public:
  [[nodiscard]] static std::optional<std::string> why_not();
  /// The calling thread's device; 0 without a GPU.
  [[nodiscard]] static int current_device();
  /// Without a driver, all memory is the host's.
  [[nodiscard]] static MemoryPlace place_of(const void* memory);

  Gpu(Communicator& communicator, int device);
  void enqueue(std::span<const DeviceCall> group);
  void abort(std::string_view reason);
  [[nodiscard]] const std::string* error() const noexcept;
};

}  // namespace chorus::nccl
