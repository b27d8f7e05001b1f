#include "device/kernels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "chorus/error.hpp"

namespace chorus::device {
namespace {

cuda::Function function(cuda::Module module, const char* name) {
  cuda::Function found = nullptr;
  cuda::check(cuda::driver().module_function(&found, module, name), "loading the GPU kernels");
  return found;
}

template <class Arguments>
void launch_with(cuda::Function kernel, const LaunchHead& head, const CallArguments* calls,
                 std::uint32_t blocks, std::uint32_t threads, cuda::StreamHandle stream) {
  Arguments arguments;  // what is not filled is not read
  arguments.head = head;
  std::copy_n(calls, head.num_calls, arguments.calls);
  void* parameters[] = {&arguments};
  cuda::check(
      cuda::driver().launch(kernel, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, nullptr),
      "launching a collective");
}

}  // namespace

Kernels::Kernels() {
  const cuda::Api& api = cuda::driver();
  cuda::Module module = nullptr;
  const cuda::Result result = api.module_load(&module, kernel_image().data());
  if (result != cuda::kSuccess) {
    throw DeviceError(
        has_kernels()
            ? fmt::format("the GPU kernels cannot be loaded: {}", cuda::describe(result))
            : "this build of Chorus has no GPU kernels: it was built without nvcc (CHORUS_CUDA)");
  }
  module_ = cuda::LoadedModule(module);
  const cuda::Stream stream = cuda::make_stream();
  const cuda::Memory memory = cuda::allocate(sizeof(std::uint64_t));
  cuda::Address at = memory.get();
  void* parameters[] = {&at};
  std::uint64_t hash = 0;
  cuda::check(api.launch(function(module, "chorus_layout"), 1, 1, 1, 1, 1, 1, 0, stream.get(),
                         parameters, nullptr),
              "running a kernel");
  cuda::check(api.copy_to_host(&hash, at, sizeof hash, stream.get()), "reading from the GPU");
  cuda::check(api.stream_synchronize(stream.get()), "running a kernel");
  if (hash != layout_hash()) {
    throw DeviceError("the GPU kernels were compiled with another memory layout than this library");
  }
  few_ = function(module, "chorus_run_few");
  many_ = function(module, "chorus_run_many");
  for (const cuda::Function kernel : {few_, many_}) {
    int blocks = 0;
    cuda::check(api.occupancy(&blocks, kernel, static_cast<int>(kThreads), 0),
                "asking how many blocks fit");
    blocks_per_multiprocessor_ =
        kernel == few_ ? blocks : std::min(blocks_per_multiprocessor_, blocks);
  }
}

void Kernels::warm_up(std::uint64_t table, cuda::StreamHandle stream) const {
  const LaunchHead head{.table = table, .timeout_ns = 0, .num_calls = 0, .num_phases = 0};
  launch_with<FewCalls>(few_, head, nullptr, 1, kThreads, stream);
  launch_with<ManyCalls>(many_, head, nullptr, 1, kThreads, stream);
}

void Kernels::launch(const LaunchHead& head, const CallArguments* calls, std::uint32_t blocks,
                     std::uint32_t threads, cuda::StreamHandle stream) const {
  if (head.num_calls <= kFewCalls) {
    launch_with<FewCalls>(few_, head, calls, blocks, threads, stream);
  } else {
    launch_with<ManyCalls>(many_, head, calls, blocks, threads, stream);
  }
}

}  // namespace chorus::device
