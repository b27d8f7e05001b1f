#include "device_floats.hpp"

#include <fmt/format.h>

#include <stdexcept>

#include "device/fake/fake_cuda.hpp"

namespace chorus::testing {

World device_world_of(int size, Ranks ranks) {
  World world{.size = size, .ranks = ranks};
  world.options.timeout_ms = 60'000;
  world.options.flight_dir.clear();
  return world;
}

void fill(DeviceRank& rank, float* memory, const std::vector<float>& data) {
  const cuda::Current current(rank.context());
  const auto stream = static_cast<cuda::StreamHandle>(rank.stream());
  cuda::check(cuda::driver().copy_to_device(reinterpret_cast<cuda::Address>(memory), data.data(),
                                            data.size() * sizeof(float), stream),
              "copy");
  cuda::check(cuda::driver().stream_synchronize(stream), "copy");
}

float* floats(DeviceRank& rank, std::size_t count, float value) {
  auto* const memory = reinterpret_cast<float*>(rank.memory(count * sizeof(float)));
  fill(rank, memory, std::vector<float>(count, value));
  return memory;
}

void expect_all(DeviceRank& rank, const float* memory, std::size_t count, float value) {
  std::vector<float> data(count);
  const cuda::Current current(rank.context());
  const auto stream = static_cast<cuda::StreamHandle>(rank.stream());
  cuda::check(cuda::driver().copy_to_host(data.data(), reinterpret_cast<cuda::Address>(memory),
                                          count * sizeof(float), stream),
              "copy");
  cuda::check(cuda::driver().stream_synchronize(stream), "copy");
  for (std::size_t i = 0; i < count; ++i) {
    if (data[i] == value) continue;
    throw std::runtime_error(fmt::format("rank {}: element {} is {} in place of {}",
                                         rank.comm().rank(), i, data[i], value));
  }
}

DeviceCall sum(const float* in, float* out, std::size_t count, void* stream) {
  return {.call = {.kind = Call::Kind::all_reduce,
                   .input = in,
                   .output = out,
                   .count = count,
                   .type = DataType::float32},
          .stream = stream};
}

void synchronize(DeviceRank& rank, cuda::StreamHandle stream) {
  const cuda::Current current(rank.context());
  cuda::check(cuda::driver().stream_synchronize(stream), "waiting for a stream");
}

/// Runs `body` in rank 0's thread while no kernel on GPU 0 can begin, of any rank.
void while_held(DeviceRank& rank, const std::function<void()>& body) {
  rank.comm().barrier();
  if (rank.comm().rank() == 0) fake_cuda_hold(0, true);
  rank.comm().barrier();
  body();
  rank.comm().barrier();
  if (rank.comm().rank() == 0) fake_cuda_hold(0, false);
}

cuda::GraphExec captured(cuda::StreamHandle stream, const std::function<void()>& calls) {
  const cuda::Api& api = cuda::driver();
  cuda::Graph graph = nullptr;
  cuda::GraphExec exec = nullptr;
  cuda::check(api.capture_begin(stream, cuda::kCaptureModeThreadLocal), "capture");
  calls();
  cuda::check(api.capture_end(stream, &graph), "capture");
  cuda::check(api.graph_instantiate(&exec, graph, 0), "instantiate");
  api.graph_destroy(graph);
  return exec;
}

}  // namespace chorus::testing
