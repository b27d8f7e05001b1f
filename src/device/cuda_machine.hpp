// A block of the device. For nvcc only.
//
// Ordering: what a block's threads wrote before sync() is before what one of them stores with
// release after it (barriers order within the block, release is cumulative); the reader's acquire
// and its own sync() are the other half. Only then are data read, by ordinary loads.
#pragma once

#include <cstdint>

#include "device/block.hpp"

namespace chorus::device {

class CudaMachine {
 public:
  /// Looking into host memory takes a microsecond or two.
  static constexpr std::uint32_t kSpinsPerLook = 1024;

  /// `beyond`: peers are on other devices, so that "everywhere" means the system.
  __device__ __forceinline__ CudaMachine(BlockShared& shared, bool beyond)
      : shared_(shared), beyond_(beyond) {}

  [[nodiscard]] __device__ __forceinline__ BlockShared& shared() const { return shared_; }
  __device__ __forceinline__ static std::uint32_t thread() { return threadIdx.x; }
  __device__ __forceinline__ static std::uint32_t threads() { return blockDim.x; }
  __device__ __forceinline__ static std::uint32_t block() { return blockIdx.x; }
  __device__ __forceinline__ static std::uint32_t blocks() { return gridDim.x; }

  __device__ __forceinline__ static void sync() { __syncthreads(); }
  __device__ __forceinline__ static bool all(bool mine) { return __syncthreads_and(mine) != 0; }
  __device__ __forceinline__ static bool any(bool mine) { return __syncthreads_or(mine) != 0; }

  __device__ __forceinline__ std::uint64_t load_acquire(const std::uint64_t* at) const {
    std::uint64_t value;
    if (beyond_) {
      asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    } else {
      asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    }
    return value;
  }
  __device__ __forceinline__ void store_release(std::uint64_t* at, std::uint64_t value) const {
    if (beyond_) {
      asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
    } else {
      asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
    }
  }
  __device__ __forceinline__ static std::uint64_t load_relaxed(const std::uint64_t* at) {
    std::uint64_t value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
  }
  __device__ __forceinline__ static void store_relaxed(std::uint64_t* at, std::uint64_t value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
  }
  /// Host memory, whatever the peers are.
  __device__ __forceinline__ static void tell_host(std::uint64_t* at, std::uint64_t value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
  }
  /// Among the blocks of this device.
  __device__ __forceinline__ static std::uint64_t add(std::uint64_t* at, std::uint64_t value) {
    std::uint64_t before;
    asm volatile("atom.add.acq_rel.gpu.global.u64 %0, [%1], %2;"
                 : "=l"(before)
                 : "l"(at), "l"(value)
                 : "memory");
    return before;
  }
  __device__ __forceinline__ static bool first(std::uint64_t* at) {
    std::uint64_t before;
    asm volatile("atom.cas.acq_rel.gpu.global.b64 %0, [%1], %2, %3;"
                 : "=l"(before)
                 : "l"(at), "l"(std::uint64_t{0}), "l"(std::uint64_t{1})
                 : "memory");
    return before == 0;
  }

  __device__ __forceinline__ static void load_pair(std::uint64_t from, std::uint64_t* words) {
    const ulonglong2 pair = *reinterpret_cast<const ulonglong2*>(from);
    words[0] = pair.x;
    words[1] = pair.y;
  }
  __device__ __forceinline__ static void store_pair(std::uint64_t to, const std::uint64_t* words) {
    *reinterpret_cast<ulonglong2*>(to) = make_ulonglong2(words[0], words[1]);
  }

  // Each 8-byte half is one access and carries its flag; that both halves travel together is only
  // faster.
  __device__ __forceinline__ static void load_words(std::uint64_t from, std::uint64_t* halves) {
    asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(halves[0]), "=l"(halves[1])
                 : "l"(from)
                 : "memory");
  }
  __device__ __forceinline__ static void store_words(std::uint64_t to,
                                                     const std::uint64_t* halves) {
    asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(halves[0]),
                 "l"(halves[1])
                 : "memory");
  }

  /// Others may need the multiprocessor, or (ranks of other processes) the whole device: the
  /// driver takes turns between processes whatever a kernel does, sleeping only costs less power
  /// and memory traffic meanwhile.
  __device__ __forceinline__ static void pause(std::uint32_t spins) {
    if (spins > 4096) __nanosleep(spins > 65536 ? 2000 : 100);
  }
  __device__ __forceinline__ static std::uint64_t now_ns() {
    std::uint64_t now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
  }

 private:
  BlockShared& shared_;
  bool beyond_;
};

}  // namespace chorus::device
