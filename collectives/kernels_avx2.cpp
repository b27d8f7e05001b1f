// The kernels for AVX2 with FMA and F16C.
#define HWY_COMPILE_ONLY_STATIC
#define CHORUS_KERNELS kernels_avx2
#define CHORUS_KERNELS_SET InstructionSet::avx2
#include "collectives/kernels-inl.hpp"
