// Floats in GPU memory, and sums of them: what most tests of the DeviceCommunicator begin with.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "device_rank.hpp"

namespace chorus::testing {

[[nodiscard]] World device_world_of(int size, Ranks ranks = Ranks::threads);

void fill(DeviceRank& rank, float* memory, const std::vector<float>& data);
/// `count` floats on the GPU, all `value`.
[[nodiscard]] float* floats(DeviceRank& rank, std::size_t count, float value);
/// Throws std::runtime_error, so that ranks that are processes are heard, too.
void expect_all(DeviceRank& rank, const float* memory, std::size_t count, float value);

/// An all-reduce.
[[nodiscard]] DeviceCall sum(const float* in, float* out, std::size_t count, void* stream);

void synchronize(DeviceRank& rank, cuda::StreamHandle stream);

/// Runs `body` while no kernel on GPU 0 can begin, of any rank.
void while_held(DeviceRank& rank, const std::function<void()>& body);

/// A graph of what `calls` puts into `stream`.
[[nodiscard]] cuda::GraphExec captured(cuda::StreamHandle stream,
                                       const std::function<void()>& calls);

}  // namespace chorus::testing
