// The kernels as loaded into one context.
#pragma once

#include <cstddef>
#include <span>

#include "device/driver.hpp"
#include "device/layout.hpp"

namespace chorus::device {

/// The compiled kernels, for cuModuleLoadData. In a build without nvcc a text that says so, which
/// no driver takes.
[[nodiscard]] std::span<const std::byte> kernel_image();
/// True if this build has kernels.
[[nodiscard]] bool has_kernels();

class Kernels {
 public:
  /// Loads them into the current context. Throws DeviceError: not built, not for this GPU, of
  /// another layout than this library's.
  Kernels();

  /// Blocks of kThreads threads that one multiprocessor holds at a time.
  [[nodiscard]] int blocks_per_multiprocessor() const { return blocks_per_multiprocessor_; }

  /// Enqueues one launch. `calls` has head.num_calls ≤ kManyCalls entries.
  void launch(const LaunchHead& head, const CallArguments* calls, std::uint32_t blocks,
              std::uint32_t threads, cuda::StreamHandle stream) const;

  /// Launches each kernel with no calls: loads it.
  void warm_up(std::uint64_t table, cuda::StreamHandle stream) const;

 private:
  cuda::LoadedModule module_;
  cuda::Function few_ = nullptr;
  cuda::Function many_ = nullptr;
  int blocks_per_multiprocessor_ = 1;
};

}  // namespace chorus::device
