// The accelerator of a torch that was built with CUDA.
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <vector>

#include "accelerator.hpp"

namespace chorus_torch {
namespace {

c10::DeviceIndex index_of(int gpu) { return static_cast<c10::DeviceIndex>(gpu); }

c10::cuda::CUDAStream torchs(void* stream, int gpu) {
  return c10::cuda::getStreamFromExternal(static_cast<cudaStream_t>(stream), index_of(gpu));
}

class Cuda final : public Accelerator {
 public:
  bool holds(const at::Tensor& tensor) const override { return tensor.is_cuda(); }
  int gpu_of(const at::Tensor& tensor) const override { return tensor.device().index(); }
  void* current_stream(int gpu) const override {
    return c10::cuda::getCurrentCUDAStream(index_of(gpu)).stream();
  }
  void* new_stream(int gpu) const override {
    constexpr bool kHighPriority = true;  // a late kernel here holds up other ranks
    return c10::cuda::getStreamFromPool(kHighPriority, index_of(gpu)).stream();
  }
  at::Tensor empty(int64_t count, const at::Tensor& like) const override {
    return at::empty({count}, like.options().requires_grad(false));
  }
  void use(const at::Tensor& tensor, int gpu, void* stream) const override {
    tensor.record_stream(torchs(stream, gpu).unwrap());
  }
  c10::intrusive_ptr<c10::ivalue::Future> future(const c10::IValue& result,
                                                 const c10::TypePtr& type, int gpu,
                                                 void* stream) const override {
    const std::vector<c10::Device> devices = {{c10::DeviceType::CUDA, index_of(gpu)}};
    auto future = c10::make_intrusive<c10::ivalue::Future>(type, devices);
    const c10::cuda::CUDAStreamGuard guard(torchs(stream, gpu));
    future->markCompleted(result);
    return future;
  }
};

}  // namespace

const Accelerator* accelerator() {
  static const Cuda cuda;
  return &cuda;
}

std::string why_no_accelerator() { return {}; }

}  // namespace chorus_torch
