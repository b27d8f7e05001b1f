// What code needs that is compiled for the host and, by nvcc, for GPUs.
#pragma once

#if defined(__CUDACC__)
#define TRAINER_BOTH __host__ __device__ __forceinline__
#else
#define TRAINER_BOTH inline
#endif
