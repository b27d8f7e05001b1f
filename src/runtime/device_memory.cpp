// GPU memory as callers see it: what of the DeviceCommunicator needs no communicator.
#include <fmt/format.h>

#include <algorithm>

#include "chorus/error.hpp"
#include "device/driver.hpp"
#include "device/kernels.hpp"
#include "runtime/device_communicator.hpp"

namespace chorus {

using cuda::address_of;

std::optional<std::string> DeviceCommunicator::why_not() {
  std::string reason;
  if (cuda::driver(reason) == nullptr) return reason;
  return std::nullopt;
}

std::optional<std::string> DeviceCommunicator::why_not(int device) {
  auto reason = why_not();
  if (reason || device::has_kernels()) return reason;
  try {
    const cuda::PrimaryContext context(device);
    const cuda::Current current(context.get());
    const device::Kernels kernels;
    return std::nullopt;
  } catch (const DeviceError& error) {
    return error.what();
  }
}

int DeviceCommunicator::current_device() {
  std::string reason;
  const cuda::Api* const api = cuda::driver(reason);
  cuda::Device device = -1;
  if (api == nullptr || api->context_device(&device) != cuda::kSuccess) return -1;
  return device;
}

MemoryPlace DeviceCommunicator::place_of(const void* memory) {
  std::string reason;
  const cuda::Api* const api = cuda::driver(reason);
  if (api == nullptr || memory == nullptr) return {};
  unsigned type = 0;
  unsigned managed = 0;
  int ordinal = -1;
  int attributes[] = {cuda::kPointerMemoryType, cuda::kPointerIsManaged,
                      cuda::kPointerDeviceOrdinal};
  void* values[] = {&type, &managed, &ordinal};
  if (api->pointer_attributes(3, attributes, values, address_of(memory)) != cuda::kSuccess) {
    return {};
  }
  if (managed != 0) return {MemoryKind::managed, -1};
  if (type == cuda::kMemoryHost) return {MemoryKind::pinned, -1};
  if (type == cuda::kMemoryDevice) return {MemoryKind::device, ordinal};
  return {};
}

void* DeviceCommunicator::allocate(int device, std::size_t size_bytes) {
  const cuda::PrimaryContext context(device);
  const cuda::Current current(context.get());
  cuda::Address address = 0;
  cuda::check(cuda::driver().alloc(&address, std::max<std::size_t>(1, size_bytes)),
              fmt::format("allocating {} bytes on GPU {}", size_bytes, device));
  // CUDA's addresses are numbers. NOLINTNEXTLINE(performance-no-int-to-ptr)
  return reinterpret_cast<void*>(address);
}

void DeviceCommunicator::free(void* memory) {
  if (memory == nullptr) return;
  const MemoryPlace place = place_of(memory);
  if (place.kind != MemoryKind::device) {
    throw InputError(fmt::format("{} is not GPU memory, or was freed before", memory));
  }
  const cuda::PrimaryContext context(place.device);
  const cuda::Current current(context.get());
  cuda::check(cuda::driver().free(address_of(memory)), "freeing GPU memory");
}

}  // namespace chorus
