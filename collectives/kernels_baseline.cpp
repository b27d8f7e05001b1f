// The kernels for any machine of this architecture: Arm's baseline has vectors that Highway knows,
// x86-64's (SSE2) is too small for it.
#define HWY_COMPILE_ONLY_STATIC
#include <hwy/highway.h>

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
#include "collectives/kernels_plain-inl.hpp"
#else
#define CHORUS_KERNELS kernels_baseline
#define CHORUS_KERNELS_SET InstructionSet::baseline
#include "collectives/kernels-inl.hpp"
#endif
