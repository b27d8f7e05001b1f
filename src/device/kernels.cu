// What runs on the device: the interpreter over CudaMachine, and the hash by which the host knows
// that both speak of the same bytes.
#include "device/cuda_machine.hpp"
#include "device/interpreter.hpp"

namespace chorus::device {
namespace {

__device__ __forceinline__ void interpret(const LaunchHead& head, const CallArguments* calls) {
  __shared__ BlockShared shared;
  const auto* table = reinterpret_cast<const RankTable*>(head.table);
  CudaMachine machine(shared, table->beyond_device != 0);
  Interpreter<CudaMachine>(machine, head, calls).run();
}

}  // namespace
}  // namespace chorus::device

using chorus::device::FewCalls;
using chorus::device::kThreads;
using chorus::device::ManyCalls;

/// For the host to compare.
extern "C" __global__ void chorus_layout(std::uint64_t* hash) {
  *hash = chorus::device::layout_hash();
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    chorus_run_few(const __grid_constant__ FewCalls launch) {
  chorus::device::interpret(launch.head, launch.calls);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    chorus_run_many(const __grid_constant__ ManyCalls launch) {
  chorus::device::interpret(launch.head, launch.calls);
}

/// Two resident blocks take turns `rounds` times: what one flag there and one back cost at least.
/// `flags`: two words, 128 bytes apart, zero.
extern "C" __global__ void chorus_ping(std::uint64_t* flags, std::uint32_t rounds) {
  using chorus::device::CudaMachine;
  if (threadIdx.x != 0) return;
  std::uint64_t* const mine = flags + 16 * blockIdx.x;
  std::uint64_t* const theirs = flags + 16 * (1 - blockIdx.x);
  for (std::uint32_t round = 1; round <= rounds; ++round) {
    if (blockIdx.x == 0) CudaMachine::store_relaxed(theirs, round);
    while (CudaMachine::load_relaxed(mine) < round) {
    }
    if (blockIdx.x == 1) CudaMachine::store_relaxed(theirs, round);
  }
}
