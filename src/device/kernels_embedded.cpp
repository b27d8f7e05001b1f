// The kernels' machine code for every architecture, as nvcc wrote it.
#include "device/kernels.hpp"

__asm__(
    ".pushsection .nv_fatbin_chorus, \"a\"\n"
    ".balign 16\n"
    "chorus_kernels_begin:\n"
    ".incbin \"" CHORUS_FATBIN
    "\"\n"
    "chorus_kernels_end:\n"
    ".byte 0\n"
    ".popsection\n");

extern "C" __attribute__((visibility("hidden"))) const std::byte chorus_kernels_begin[];
extern "C" __attribute__((visibility("hidden"))) const std::byte chorus_kernels_end[];

namespace chorus::device {

std::span<const std::byte> kernel_image() { return {chorus_kernels_begin, chorus_kernels_end}; }

bool has_kernels() { return true; }

std::string_view kernel_targets() { return CHORUS_KERNEL_TARGETS; }

}  // namespace chorus::device
