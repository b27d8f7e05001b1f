#include "device/kernels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "chorus/error.hpp"

namespace chorus::device {
namespace {

cuda::Function function(cuda::Module module, const char* name) {
  cuda::Function found = nullptr;
  cuda::check(cuda::driver().module_function(&found, module, name), "loading the GPU kernels");
  return found;
}

template <class Arguments>
cuda::Result launch_with(cuda::Function kernel, const LaunchHead& head, const CallArguments* calls,
                         std::uint32_t blocks, std::uint32_t threads, cuda::StreamHandle stream) {
  Arguments arguments;  // what is not filled is not read
  arguments.head = head;
  std::copy_n(calls, head.num_calls, arguments.calls);
  void* parameters[] = {&arguments};
  return cuda::driver().launch(kernel, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, nullptr);
}

/// One context's kernels. The context is kept: they go with it.
struct Loaded {
  cuda::PrimaryContext context;
  unsigned long long context_id = 0;
  std::unique_ptr<const Kernels> kernels;
};

/// A context that was reset (cudaDeviceReset) is another one.
unsigned long long id_of(cuda::Context context) {
  unsigned long long id = 0;
  if (cuda::driver().context_id != nullptr) cuda::driver().context_id(context, &id);
  return id;
}

}  // namespace

std::string why_refused(cuda::Result result, cuda::Device device) {
  const cuda::Api& api = cuda::driver();
  if (result == cuda::kNoBinaryForGpu) {
    int major = 0;
    int minor = 0;
    api.device_attribute(&major, cuda::kComputeMajor, device);
    api.device_attribute(&minor, cuda::kComputeMinor, device);
    return fmt::format(
        "GPU {} has compute capability {}.{}, for which this build of Chorus has no kernels (it "
        "has them for {}): build it with CHORUS_CUDA_ARCHITECTURES={}{} and a toolkit that knows "
        "that",
        device, major, minor, kernel_targets(), major, minor);
  }
  if (result == cuda::kInvalidImage || result == cuda::kUnsupportedPtx) {
    int version = 0;
    api.driver_version(&version);
    return fmt::format(
        "the driver, which is for CUDA {}.{}, does not take the GPU kernels (for {}): update it, "
        "or "
        "build Chorus with a toolkit as old as the driver",
        version / 1000, version % 1000 / 10, kernel_targets());
  }
  return fmt::format("the GPU kernels cannot be loaded: {}", cuda::describe(result));
}

const Kernels& Kernels::of(cuda::Device device) {
  static std::mutex mutex;
  static auto* const all = new std::map<cuda::Device, Loaded>;
  const std::lock_guard lock(mutex);
  cuda::PrimaryContext context(device);
  const unsigned long long id = id_of(context.get());
  if (const auto found = all->find(device); found != all->end()) {
    if (found->second.context.get() == context.get() && found->second.context_id == id) {
      return *found->second.kernels;
    }
    static_cast<void>(found->second.kernels.release());  // the module went with its context
    all->erase(found);
  }
  std::unique_ptr<const Kernels> kernels(new Kernels(device));
  return *all->emplace(device, Loaded{std::move(context), id, std::move(kernels)})
              .first->second.kernels;
}

Kernels::Kernels(cuda::Device device) {
  const cuda::Api& api = cuda::driver();
  cuda::Module module = nullptr;
  const cuda::Result result = api.module_load(&module, kernel_image().data());
  if (result != cuda::kSuccess) {
    throw DeviceError(has_kernels() ? why_refused(result, device)
                                    : "this build of Chorus has no GPU kernels: it was built "
                                      "without nvcc (CHORUS_CUDA)");
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
  cuda::check(launch_with<FewCalls>(few_, head, nullptr, 1, kThreads, stream), "running a kernel");
  cuda::check(launch_with<ManyCalls>(many_, head, nullptr, 1, kThreads, stream),
              "running a kernel");
}

void Kernels::launch(const LaunchHead& head, const CallArguments* calls, std::uint32_t blocks,
                     std::uint32_t threads, cuda::StreamHandle stream,
                     cuda::CurrentOnDemand& context) const {
  const auto launch = [&] {
    return head.num_calls <= kFewCalls
               ? launch_with<FewCalls>(few_, head, calls, blocks, threads, stream)
               : launch_with<ManyCalls>(many_, head, calls, blocks, threads, stream);
  };
  cuda::check(context.attempt(launch), "launching a collective");
}

}  // namespace chorus::device
