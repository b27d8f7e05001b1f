// What code needs that g++ compiles for the host and nvcc for the device.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#define CHORUS_BOTH __host__ __device__
#define CHORUS_INLINE __host__ __device__ __forceinline__
#define CHORUS_NOINLINE __host__ __device__ __noinline__
#define CHORUS_UNROLL _Pragma("unroll")
#else
#define CHORUS_BOTH
#define CHORUS_INLINE inline
#define CHORUS_NOINLINE __attribute__((noinline))
#define CHORUS_UNROLL _Pragma("GCC unroll 8")
#endif

namespace chorus::device {

template <class T>
CHORUS_INLINE constexpr T smaller(T a, T b) {
  return a < b ? a : b;
}
template <class T>
CHORUS_INLINE constexpr T larger(T a, T b) {
  return a < b ? b : a;
}
CHORUS_INLINE constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace chorus::device
