// The twin of the kernels on the host: what a GPU would run, run by threads.
#pragma once

#include <cstdint>
#include <span>

#include "device/block.hpp"
#include "device/layout.hpp"

namespace chorus::device {

/// Runs a block over each of `blocks`, its shared memory, and returns when all have ended. A block
/// has `threads` threads. What is in shared memory beforehand is whatever the last block left.
void run_on_host(const LaunchHead& head, const CallArguments* calls,
                 std::span<BlockShared* const> blocks, std::uint32_t threads);

}  // namespace chorus::device
