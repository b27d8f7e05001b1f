// GPU memory as the host's network adapters reach it: GPUDirect RDMA by dma-bufs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/files/fd.hpp"
#include "device/driver/driver.hpp"
#include "transports/link/device_memory.hpp"

namespace chorus {

/// What a GPU and its driver offer. The GPU's context is current where these are used.
struct GpuDirect {
  /// What is exported begins and ends on such boundaries: the largest page of a host.
  static constexpr std::size_t kAlignment = 64 * 1024;

  /// Whether kernels see, and how, what adapters have written before the host says so.
  enum class Writes {
    ordered,   ///< at once
    flushed,   ///< after flush()
    unordered  ///< nobody can know when
  };
  [[nodiscard]] static Writes writes_of(int device);
  /// After it, kernels of the current context see what adapters had written before it. Throws
  /// DeviceError.
  static void flush();
};

/// An allocation, exported.
class GpuMemory final : public DeviceMemory {
 public:
  /// All `bytes` of an allocation, which must stay until no link has it. Throws DeviceError with
  /// the reason why the driver does not export it.
  GpuMemory(int device, cuda::Address address, std::size_t bytes);

  [[nodiscard]] int descriptor() const override { return file_.get(); }
  [[nodiscard]] std::uint64_t address() const override { return address_; }
  [[nodiscard]] std::size_t size() const override { return bytes_; }
  void read(std::uint64_t from, std::span<std::byte> to) override;
  void write(std::uint64_t to, std::span<const std::byte> from) override;

 private:
  cuda::Address address_;
  std::size_t bytes_;
  Fd file_;
  cuda::Stream stream_;
};

}  // namespace chorus
