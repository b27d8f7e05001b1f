// The kernels as loaded into one context.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "device/driver/driver.hpp"
#include "device/layout.hpp"

namespace chorus::device {

/// The compiled kernels, for cuModuleLoadData. In a build without nvcc a text that says so, which
/// no driver takes.
[[nodiscard]] std::span<const std::byte> kernel_image();
/// True if this build has kernels.
[[nodiscard]] bool has_kernels();
/// The compute capabilities that it has them for, and the CUDA that built them: "80 90 of CUDA
/// 13.0".
[[nodiscard]] std::string_view kernel_targets();
/// Why the driver refused kernels for a GPU, and what helps.
[[nodiscard]] std::string why_refused(cuda::Result result, cuda::Device device);

class Kernels {
 public:
  /// Those in the current context, which is the primary one of `device`. Loaded by the first call
  /// and never unloaded: both may wait for kernels that run. From any thread. Throws DeviceError:
  /// not built, not for this GPU or driver, of another layout than this library's.
  [[nodiscard]] static const Kernels& of(cuda::Device device);

  /// Blocks of kThreads threads that one multiprocessor holds at a time.
  [[nodiscard]] int blocks_per_multiprocessor() const { return blocks_per_multiprocessor_; }

  /// Enqueues one launch. `calls` has head.num_calls ≤ kManyCalls entries; `context` is that of the
  /// kernels.
  void launch(const LaunchHead& head, const CallArguments* calls, std::uint32_t blocks,
              std::uint32_t threads, cuda::StreamHandle stream,
              cuda::CurrentOnDemand& context) const;

  /// Launches each kernel with no calls: loads it.
  void warm_up(std::uint64_t table, cuda::StreamHandle stream) const;

 private:
  explicit Kernels(cuda::Device device);

  cuda::LoadedModule module_;
  cuda::Function few_ = nullptr;
  cuda::Function many_ = nullptr;
  int blocks_per_multiprocessor_ = 1;
};

}  // namespace chorus::device
