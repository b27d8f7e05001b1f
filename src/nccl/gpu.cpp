#include "nccl/gpu.hpp"

#include <dlfcn.h>

#include <cstdint>

#include "chorus/error.hpp"

namespace chorus::nccl {
namespace {

/// What is needed of the driver to tell whose memory a pointer is.
struct Driver {
  using PointerGetAttribute = int (*)(void* data, int attribute, std::uintptr_t pointer);
  PointerGetAttribute pointer_get_attribute = nullptr;

  static const Driver& get() {
    static const Driver driver = [] {
      Driver found;
      void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
      if (library != nullptr) {
        found.pointer_get_attribute =
            reinterpret_cast<PointerGetAttribute>(::dlsym(library, "cuPointerGetAttribute"));
      }
      return found;
    }();
    return driver;
  }
};

constexpr int kAttributeMemoryType = 2;  // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
constexpr unsigned kTypeDevice = 2;      // CU_MEMORYTYPE_DEVICE

}  // namespace

std::optional<std::string> Gpu::why_not() {
  return "this version of Chorus runs collectives on host memory only";
}

int Gpu::current_device() { return 0; }

MemoryPlace Gpu::place_of(const void* memory) {
  const Driver& driver = Driver::get();
  unsigned type = 0;
  if (driver.pointer_get_attribute == nullptr ||
      driver.pointer_get_attribute(&type, kAttributeMemoryType,
                                   reinterpret_cast<std::uintptr_t>(memory)) != 0 ||
      type != kTypeDevice) {
    return {};
  }
  return {.kind = MemoryKind::device, .device = 0};
}

Gpu::Gpu(Communicator& /*communicator*/, int /*device*/) { throw InputError(*why_not()); }

void Gpu::enqueue(std::span<const DeviceCall> /*group*/) { throw InputError(*why_not()); }

void Gpu::abort(std::string_view /*reason*/) {}

const std::string* Gpu::error() const noexcept { return nullptr; }

}  // namespace chorus::nccl
