// A CUDA driver without a GPU, under the driver's own name: memory is the host's, streams are
// queues with a thread each, kernels are their twins. What real drivers refuse it refuses too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace chorus::testing {

inline constexpr int kFakeDevices = 2;
inline constexpr int kFakeMultiprocessors = 8;
inline constexpr int kFakeBlocksPerMultiprocessor = 2;

/// True where the driver is this one.
[[nodiscard]] bool fake_cuda();
/// Calls of this function of the driver so far, in this process.
[[nodiscard]] int fake_cuda_calls(const char* symbol);
/// The next `times` calls of it return `result`.
void fake_cuda_fail(const char* symbol, int result, int times = 1);
/// From now on, kernels of launches on `device` wait before they begin, until released.
void fake_cuda_hold(int device, bool held);
/// Whether the devices have peer access to each other; they do at first.
void fake_cuda_peer_access(bool access);
/// From now on copies between memory of different devices lose a byte; they do not at first.
void fake_cuda_damage(bool damage);
/// How adapters reach the memory of the devices.
struct FakeGpuDirect {
  bool exports = true;  ///< memory as dma-bufs
  bool ordered = true;  ///< kernels see at once what adapters have written
  bool flushes = true;  ///< or else after cuFlushGPUDirectRDMAWrites
};
void fake_cuda_gpu_direct(const FakeGpuDirect& support);
/// Called before device memory goes, with its address; and by cuFlushGPUDirectRDMAWrites.
void fake_cuda_watch(std::function<void(std::uint64_t)> freed, std::function<void()> flushed);
/// Bytes allocated and not freed, device memory and pinned; and one for each registration.
[[nodiscard]] std::size_t fake_cuda_allocated();

}  // namespace chorus::testing
