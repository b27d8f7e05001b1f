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
/// Calls of all of its functions.
[[nodiscard]] int fake_cuda_calls();
/// The next `times` calls of it return `result`.
void fake_cuda_fail(const char* symbol, int result, int times = 1);
/// From now on, kernels of launches on `device` wait before they begin, until released.
void fake_cuda_hold(int device, bool held);
/// Undoes a fault: every device can be used again.
void fake_cuda_heal();
/// From now on every call in the context of `device` fails, as after a kernel's illegal access.
void fake_cuda_fault(int device);
/// GPUs of so many multiprocessors; 0: as at first.
void fake_cuda_multiprocessors(int count);
/// GPUs of this compute capability (75 for 7.5), whose kernels are loaded where that is known; 0:
/// as at first.
void fake_cuda_compute_capability(int capability);
/// From now on memory is allocated, freed, mapped and unmapped when no kernel runs on the device,
/// as drivers may do.
void fake_cuda_allocation_waits(bool waits);
/// The device of a CUDA runtime that has made no context yet, in every thread; -1: there is none.
void fake_cuda_runtime_device(int device);
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
/// What the last launch of a kernel that has calls was given.
struct FakeLaunch {
  std::uint64_t timeout_ns = 0;
  std::uint32_t num_calls = 0;
  bool beyond_device = false;
  bool direct = false;  ///< one of its calls offers its buffers to the other ranks
  bool words = false;   ///< one of its calls goes by words where ranks reach each other
};
[[nodiscard]] FakeLaunch fake_cuda_last_launch();
/// Bytes allocated and not freed, device memory and pinned; and one for each registration.
[[nodiscard]] std::size_t fake_cuda_allocated();
/// How often this process has freed memory that another one had mapped, which is undefined.
[[nodiscard]] int fake_cuda_frees_of_mapped();

}  // namespace chorus::testing
