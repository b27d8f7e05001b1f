// The kernels for AVX-512 F, BW, CD, DQ and VL.
#define HWY_COMPILE_ONLY_STATIC
#define CHORUS_KERNELS kernels_avx512
#define CHORUS_KERNELS_SET InstructionSet::avx512
#include "collectives/kernels-inl.hpp"
