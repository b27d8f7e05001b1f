#include "runtime/gpu/dmabuf.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "chorus/error.hpp"

namespace chorus {
namespace {

/// Zero where the driver does not know the attribute.
int attribute(int device, int name) {
  int value = 0;
  return cuda::driver().device_attribute(&value, name, device) == cuda::kSuccess ? value : 0;
}

}  // namespace

GpuDirect::Writes GpuDirect::writes_of(int device) {
  if (attribute(device, cuda::kWritesOrdering) >= cuda::kOrderedForOwner) return Writes::ordered;
  const bool flushes = (attribute(device, cuda::kFlushWritesOptions) & cuda::kFlushByHost) != 0;
  return flushes && cuda::driver().flush_writes != nullptr ? Writes::flushed : Writes::unordered;
}

void GpuDirect::flush() {
  cuda::check(cuda::driver().flush_writes(cuda::kFlushCurrentContext, cuda::kFlushToOwner),
              "making what adapters wrote seen (cuFlushGPUDirectRDMAWrites)");
}

GpuMemory::GpuMemory(int device, cuda::Address address, std::size_t bytes)
    : address_(address), bytes_(bytes) {
  const cuda::Api& api = cuda::driver();
  if (api.range_handle == nullptr) {
    throw DeviceError("the driver is too old to export GPU memory: CUDA 11.7 has it");
  }
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  if (address % page != 0 || bytes % page != 0) {
    throw DeviceError(fmt::format("GPU memory does not lie on pages of {} bytes", page));
  }
  int file = -1;
  if (const auto result = api.range_handle(&file, address, bytes, cuda::kRangeDmabuf, 0);
      result != cuda::kSuccess) {
    const bool never = attribute(device, cuda::kDmabufSupported) == 0;
    throw DeviceError(
        fmt::format("the driver does not export {} bytes of GPU memory as a dma-buf: {}{}", bytes,
                    cuda::describe(result),
                    never ? "; it needs its open kernel modules, and Linux 5.12 or later" : ""));
  }
  file_ = Fd(file);
  ::fcntl(file, F_SETFD, FD_CLOEXEC);  // GPU memory is nothing for the programs that this one runs
  stream_ = cuda::make_stream();
}

void GpuMemory::read(std::uint64_t from, std::span<std::byte> to) {
  const cuda::Api& api = cuda::driver();
  cuda::check(api.copy_to_host(to.data(), from, to.size(), stream_.get()), "copying from the GPU");
  cuda::check(api.stream_synchronize(stream_.get()), "copying from the GPU");
}

void GpuMemory::write(std::uint64_t to, std::span<const std::byte> from) {
  const cuda::Api& api = cuda::driver();
  cuda::check(api.copy_to_device(to, from.data(), from.size(), stream_.get()),
              "copying to the GPU");
  cuda::check(api.stream_synchronize(stream_.get()), "copying to the GPU");
}

}  // namespace chorus
