// How the fake driver executes the kernels of a launch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/layout.hpp"

namespace fake {

/// A launch whose blocks are resident.
struct KernelLaunch {
  const char* kernel;     ///< its name
  const void* arguments;  ///< FewCalls or ManyCalls
  std::size_t argument_bytes;
  const chorus::device::LaunchHead* head;
  const chorus::device::CallArguments* calls;
  int device;
  std::uint32_t blocks;
  std::uint32_t threads;
};

/// Runs it and returns when all of its blocks have ended. FAKE_CUDA_KERNELS says how:
///
///   threads:N  by the host twin, N threads per block; threads:1 where the variable is not set
///   ptx:FILE   by executing what nvcc emitted (ptx/machine.hpp), with FAKE_CUDA_SEED (1) for the
///              order of warps; a finding ends the process
///
/// Shared memory is what the block before left on the same multiprocessor. A setting that is none
/// of these ends the process with a sentence.
void run_kernel(const KernelLaunch& launch);

/// Memory was allocated, mapped or registered: what kernels did where it lies was done to other
/// memory.
void memory_is_new(std::uint64_t address, std::size_t size_bytes);

}  // namespace fake
