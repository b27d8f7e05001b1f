#include "perf/worker/gpu_buffers.hpp"

#include <algorithm>

#include "chorus/error.hpp"
#include "perf/worker/collective_data.hpp"

namespace chorus::perf {
namespace {

int device_of(int rank) {
  int devices = 0;
  cuda::check(cuda::driver().device_count(&devices), "counting GPUs");
  if (devices == 0) throw Error("the CUDA driver shows no GPU to this process");
  return rank % devices;
}

}  // namespace

Gpu::Gpu(int rank)
    : ordinal_(device_of(rank)),
      context_(ordinal_),
      current_(context_.get()),
      stream_(cuda::make_stream()) {}

void Gpu::wait() const {
  cuda::check(cuda::driver().stream_synchronize(stream_.get()), "waiting for the GPU");
}

GpuBuffers::GpuBuffers(const Gpu& gpu, const Operation& host, int rank, int world_size)
    : gpu_(gpu), operation_(host) {
  const std::size_t element = size_of(host.type);
  const std::size_t in_bytes = input_count(host, rank, world_size) * element;
  const std::size_t out_bytes = output_count(host, rank, world_size) * element;
  // Input pointers are const for the backends; the memory is the loop's.
  auto* const in = static_cast<std::byte*>(const_cast<void*>(host.input));
  auto* const out = static_cast<std::byte*>(host.output);
  const bool both = in_bytes > 0 && out_bytes > 0;
  if (both && in < out + out_bytes && out < in + in_bytes) {
    std::byte* const begin = std::min(in, out);
    add(begin, static_cast<std::size_t>(std::max(in + in_bytes, out + out_bytes) - begin));
  } else {
    add(in, in_bytes);
    add(out, out_bytes);
  }
  operation_.input = on_gpu(in, in_bytes);
  operation_.output = on_gpu(out, out_bytes);
  if (host.kind == Kind::broadcast) operation_.input = operation_.output;
}

void GpuBuffers::add(std::byte* host, std::size_t bytes) {
  if (bytes > 0) parts_.push_back({host, bytes, cuda::allocate(bytes)});
}

std::byte* GpuBuffers::on_gpu(const void* host, std::size_t bytes) const {
  const auto* const at = static_cast<const std::byte*>(host);
  for (const Part& part : parts_) {
    if (bytes == 0 || at < part.host || at + bytes > part.host + part.bytes) continue;
    // CUDA's addresses are numbers. NOLINTNEXTLINE(performance-no-int-to-ptr)
    return reinterpret_cast<std::byte*>(part.gpu.get()) + (at - part.host);
  }
  return nullptr;
}

void GpuBuffers::copy(bool to_gpu) {
  const cuda::Api& api = cuda::driver();
  for (const Part& part : parts_) {
    const cuda::Address gpu = part.gpu.get();
    cuda::check(to_gpu ? api.copy_to_device(gpu, part.host, part.bytes, gpu_.stream())
                       : api.copy_to_host(part.host, gpu, part.bytes, gpu_.stream()),
                "copying between host and GPU");
  }
  gpu_.wait();
}

}  // namespace chorus::perf
