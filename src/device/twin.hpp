// The twin of the kernels on the host: what a GPU would run, run by threads.
#pragma once

#include <cstdint>

#include "device/layout.hpp"

namespace chorus::device {

/// Runs `blocks` blocks, one thread each, and returns when all have ended.
void run_on_host(const LaunchHead& head, const CallArguments* calls, std::uint32_t blocks);

}  // namespace chorus::device
