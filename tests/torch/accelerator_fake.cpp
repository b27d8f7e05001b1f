// In place of torch's CUDA, over the fake driver: tensors of the CPU whose memory is a GPU's. What
// is freed too early, or used before its stream comes to it, goes wrong as it would on a true GPU.
#include <dlfcn.h>

#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

#include "accelerator.hpp"
#include "runtime/gpu/communicator.hpp"
#include "runtime/gpu/stream.hpp"

namespace chorus_torch {
namespace {

using chorus::DeviceCommunicator;

thread_local void* the_current_stream = nullptr;

std::byte* memory_of(const at::Tensor& tensor) {
  // Not data_ptr(): that is null where there are no elements.
  return static_cast<std::byte*>(const_cast<void*>(
      static_cast<const void*>(tensor.unsafeGetTensorImpl()->unsafe_storage().data())));
}

class Fake final : public Accelerator {
 public:
  bool holds(const at::Tensor& tensor) const override {
    return tensor.device().is_cpu() && tensor.has_storage() &&
           DeviceCommunicator::place_of(memory_of(tensor), 0).kind == chorus::MemoryKind::device;
  }
  int gpu_of(const at::Tensor& tensor) const override {
    return DeviceCommunicator::place_of(memory_of(tensor), 0).device;
  }
  void* current_stream(int /*gpu*/) const override { return the_current_stream; }
  void* new_stream(int gpu) const override {
    void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW);
    const auto retain =
        reinterpret_cast<int (*)(void**, int)>(::dlsym(driver, "cuDevicePrimaryCtxRetain"));
    const auto push = reinterpret_cast<int (*)(void*)>(::dlsym(driver, "cuCtxPushCurrent_v2"));
    const auto pop = reinterpret_cast<int (*)(void**)>(::dlsym(driver, "cuCtxPopCurrent_v2"));
    const auto create =
        reinterpret_cast<int (*)(void**, unsigned)>(::dlsym(driver, "cuStreamCreate"));
    constexpr unsigned kNonBlocking = 1;
    void* context = nullptr;
    void* stream = nullptr;
    const bool made =
        retain(&context, gpu) == 0 && push(context) == 0 && create(&stream, kNonBlocking) == 0;
    if (!made || pop(&context) != 0) throw std::runtime_error("no stream");
    return stream;
  }
  at::Tensor empty(int64_t count, const at::Tensor& like) const override {
    const int gpu = gpu_of(like);
    void* const memory = DeviceCommunicator::allocate(
        gpu, static_cast<std::size_t>(count) * like.element_size() + 1);
    const auto release = [this, gpu](void* data) { let_go(gpu, data); };
    return at::from_blob(memory, {count}, release, like.options().requires_grad(false));
  }
  void use(const at::Tensor& tensor, int /*gpu*/, void* stream) const override {
    const std::lock_guard lock(mutex_);
    uses_.emplace(memory_of(tensor), stream);
  }
  c10::intrusive_ptr<c10::ivalue::Future> future(const c10::IValue& result,
                                                 const c10::TypePtr& type, int gpu,
                                                 void* stream) const override {
    // A future of the CPU orders no streams by itself: the one that is current now is all it can.
    chorus::DeviceMark(gpu, stream).hold(the_current_stream);
    auto future = c10::make_intrusive<c10::ivalue::Future>(type);
    future->markCompleted(result);
    return future;
  }

 private:
  /// Memory that nobody has any more, and the streams that use it still.
  struct Left {
    void* memory;
    int gpu;
    std::vector<chorus::DeviceMark> uses;
  };

  void let_go(int gpu, void* memory) const {
    const std::lock_guard lock(mutex_);
    Left left{memory, gpu, {}};
    const auto [first, last] = uses_.equal_range(memory);
    for (auto use = first; use != last; ++use) left.uses.emplace_back(gpu, use->second);
    uses_.erase(first, last);
    left_.push_back(std::move(left));
    std::erase_if(left_, [](const Left& each) {
      for (const chorus::DeviceMark& use : each.uses) {
        if (!use.passed()) return false;
      }
      DeviceCommunicator::free(each.memory, each.gpu);
      return true;
    });
  }

  mutable std::mutex mutex_;
  mutable std::multimap<void*, void*> uses_;  // streams by memory
  mutable std::vector<Left> left_;
};

}  // namespace

const Accelerator* accelerator() {
  static const auto* const fake = new Fake;  // tensors may go after all static objects
  return fake;
}

std::string why_no_accelerator() { return {}; }

}  // namespace chorus_torch

// For the test, by ctypes.
extern "C" {

[[gnu::visibility("default")]] void* fake_gpu_allocate(int gpu, std::size_t bytes) {
  return chorus::DeviceCommunicator::allocate(gpu, bytes);
}
[[gnu::visibility("default")]] void fake_gpu_use_stream(void* stream) {
  chorus_torch::the_current_stream = stream;
}

}  // extern "C"
