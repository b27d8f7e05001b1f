// GPU memory as callers see it: what of the DeviceCommunicator needs no communicator.
#include "runtime/gpu/memory.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "chorus/error.hpp"
#include "device/driver/driver.hpp"
#include "device/kernels.hpp"
#include "model/schedule/contract.hpp"
#include "runtime/engine/call.hpp"
#include "runtime/engine/flight_recorder.hpp"

namespace chorus {
namespace {

using cuda::address_of;

/// cudaGetDevice() of whichever CUDA runtime the process has loaded; null: none.
using GetDevice = int (*)(int*);
GetDevice runtime_get_device() {
  if (void* const found = ::dlsym(RTLD_DEFAULT, "cudaGetDevice")) {
    return reinterpret_cast<GetDevice>(found);
  }
  for (const char* name : {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"}) {
    void* const library = ::dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) continue;
    return reinterpret_cast<GetDevice>(::dlsym(library, "cudaGetDevice"));
  }
  return nullptr;
}

}  // namespace

MemoryPlace ask_place(const void* memory, cuda::CurrentOnDemand& context) {
  if (memory == nullptr) return {};
  unsigned type = 0;
  unsigned managed = 0;
  unsigned ipc_capable = 0;
  int ordinal = -1;
  std::uint64_t buffer = 0;
  cuda::Address begin = 0;
  std::size_t size = 0;
  int attributes[] = {cuda::kPointerMemoryType,    cuda::kPointerIsManaged,
                      cuda::kPointerDeviceOrdinal, cuda::kPointerIpcCapable,
                      cuda::kPointerBufferId,      cuda::kPointerRangeStart,
                      cuda::kPointerRangeSize};
  void* values[] = {&type, &managed, &ordinal, &ipc_capable, &buffer, &begin, &size};
  static_assert(std::size(attributes) == std::size(values));
  const cuda::Result result = context.attempt([&] {
    const cuda::Result asked = cuda::driver().pointer_attributes(
        static_cast<unsigned>(std::size(attributes)), attributes, values, address_of(memory));
    return asked == cuda::kInvalidValue ? cuda::kSuccess : asked;  // nobody's: the type is still 0
  });
  cuda::check(result, fmt::format("asking the driver what memory {} is", memory));
  if (managed != 0) return {.kind = MemoryKind::managed, .buffer = buffer};
  if (type == cuda::kMemoryHost) return {.kind = MemoryKind::pinned, .buffer = buffer};
  if (type != cuda::kMemoryDevice) return {};
  MemoryPlace place{.kind = MemoryKind::device,
                    .device = ordinal,
                    .peers_reach = ipc_capable != 0,
                    .buffer = buffer};
  if (place.peers_reach) {  // a range of cuMemAddressReserve may hold memory of several kinds
    place.begin = begin;
    place.end = begin + size;
  }
  return place;
}

namespace {

/// Asks about the buffers of one call.
class BufferCheck {
 public:
  BufferCheck(const Call& call, Rank rank, int device, cuda::CurrentOnDemand& context)
      : call_(call), rank_(rank), device_(device), context_(context) {}

  MemoryPlace check(const void* memory, const char* what) {
    const auto at = reinterpret_cast<std::uintptr_t>(memory);
    if (memory != nullptr && at >= last_.begin && at < last_.end) return last_;
    const MemoryPlace place = ask_place(memory, context_);
    if (place.kind == MemoryKind::host) {
      throw InputError(fmt::format(
          "rank {}: {}: the {} at {} is host memory, which GPU {} cannot reach (or was freed): "
          "pass memory of the GPU, or register it (cudaHostRegister)",
          rank_, signature(call_), what, memory, device_));
    }
    if (place.kind == MemoryKind::device && place.device != device_) {
      throw InputError(fmt::format(
          "rank {}: {}: the {} at {} is memory of GPU {}, but the communicator is on GPU {}", rank_,
          signature(call_), what, memory, place.device, device_));
    }
    last_ = place;
    return place;
  }

 private:
  const Call& call_;
  Rank rank_;
  int device_;
  cuda::CurrentOnDemand& context_;
  MemoryPlace last_;  ///< buffers of one block of memory are asked about once
};

}  // namespace

BufferPlaces check_buffers(const DeviceCall& device_call, Rank rank, int world_size, int device,
                           cuda::CurrentOnDemand& context) {
  const Call& call = device_call.call;
  const Collective collective{.kind = static_cast<CollectiveKind>(call.kind), .root = call.peer};
  bool input = call.kind == Call::Kind::send;
  bool output = call.kind == Call::Kind::recv;
  if (!is_message(call.kind) && call.kind != Call::Kind::barrier) {
    input = input_blocks(collective, world_size, rank) > 0;
    output = output_blocks(collective, world_size, rank) > 0;
  }
  BufferPlaces places;
  if (call.count == 0) return places;
  BufferCheck buffers(call, rank, device, context);
  if (input) places.input = buffers.check(call.input, "input");
  if (output) places.output = buffers.check(call.output, "output");
  if (device_call.scale_at != nullptr) {
    static_cast<void>(buffers.check(device_call.scale_at, "factor"));
  }
  return places;
}

std::optional<std::string> DeviceCommunicator::why_not() {
  std::string reason;
  if (cuda::driver(reason) == nullptr) return reason;
  return std::nullopt;
}

std::optional<std::string> DeviceCommunicator::why_not(int device) {
  if (auto reason = why_not()) return reason;
  try {
    const cuda::PrimaryContext context(device);
    const cuda::Current current(context.get());
    static_cast<void>(device::Kernels::of(device));
    return std::nullopt;
  } catch (const DeviceError& error) {
    return error.what();
  }
}

int DeviceCommunicator::current_device() {
  std::string reason;
  const cuda::Api* const api = cuda::driver(reason);
  if (api == nullptr) return -1;
  cuda::Device device = -1;
  if (api->context_device(&device) == cuda::kSuccess) return device;
  const GetDevice of_runtime = runtime_get_device();
  int ordinal = -1;
  return of_runtime != nullptr && of_runtime(&ordinal) == 0 ? ordinal : -1;
}

MemoryPlace DeviceCommunicator::place_of(const void* memory, int device) {
  if (why_not()) return {};
  cuda::PrimaryContext context;
  try {
    context = cuda::PrimaryContext(device);
  } catch (const DeviceError&) {
    return {};  // without a context on that GPU there is no memory of it
  }
  cuda::CurrentOnDemand current(context.get());
  return ask_place(memory, current);
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

void DeviceCommunicator::free(void* memory, int device) {
  if (memory == nullptr) return;
  const cuda::PrimaryContext context(device);
  const cuda::Current current(context.get());
  cuda::CurrentOnDemand here(context.get());
  const MemoryPlace place = ask_place(memory, here);
  if (place.kind != MemoryKind::device || place.device != device) {
    throw InputError(
        fmt::format("{} is not memory of GPU {}, or was freed before", memory, device));
  }
  cuda::check(cuda::driver().free(address_of(memory)), "freeing GPU memory");
}

}  // namespace chorus
