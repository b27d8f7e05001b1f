// One rank's GPU in a test: memory that mirrors the host's, and a stream.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/driver/driver.hpp"
#include "runtime/gpu/communicator.hpp"
#include "runtime/world.hpp"

namespace chorus::testing {

class DeviceRank {
 public:
  DeviceRank(Communicator& comm, int device, const DeviceTuning& tuning);
  ~DeviceRank();

  /// Copies the call's buffers to the GPU (as they lie: alignment, overlap, what is around the
  /// output), runs it there and copies back.
  void run(const Call& call);
  /// The same, from the copies to `enqueue`, which is given the call on GPU memory.
  void run(const Call& call, const std::function<void(const Call&)>& enqueue);
  /// Waits for the stream; throws CollectiveError if the communicator has failed.
  void finish();

  [[nodiscard]] DeviceCommunicator& device() { return *device_; }
  [[nodiscard]] Communicator& comm() { return comm_; }
  [[nodiscard]] void* stream() const { return stream_.get(); }
  [[nodiscard]] cuda::Context context() const { return context_.get(); }
  /// Shares memory, and waits until calls use it where it is of use at all. Not collective.
  void share(void* memory, std::size_t size_bytes);
  /// GPU memory that lives as long as this, zeroed.
  [[nodiscard]] std::byte* memory(std::size_t size_bytes);

 private:
  Communicator& comm_;
  cuda::PrimaryContext context_;
  cuda::Stream stream_;
  std::vector<cuda::Memory> memories_;
  cuda::Memory mirror_;
  std::size_t mirror_bytes_ = 0;
  std::unique_ptr<DeviceCommunicator> device_;
};

/// Where the ranks' GPUs are.
enum class Gpus {
  one,
  two,
  two_apart,  ///< without peer access, where the driver is the fake one
};

/// Joins `world.size` ranks, each with a GPU (rank mod 2 where there are two), and runs `body`.
Outcomes run_devices(const World& world, Gpus gpus, const DeviceTuning& tuning,
                     const std::function<void(DeviceRank&)>& body);

/// How the GPUs of a test's ranks exchange: its parameter.
struct Exchange {
  const char* name;
  DeviceTuning tuning;
  const char* transports = "shm,rdma,tcp";
};
/// Each other's memory; host memory and shm; host memory and tcp.
[[nodiscard]] std::vector<Exchange> exchanges();
[[nodiscard]] std::string name_of(const ::testing::TestParamInfo<Exchange>& info);

/// Tests that run in every way to exchange.
class Exchanging : public ::testing::TestWithParam<Exchange> {
 protected:
  static Outcomes run(World world, Gpus gpus, const std::function<void(DeviceRank&)>& body) {
    world.options.transports = GetParam().transports;
    return run_devices(world, gpus, GetParam().tuning, body);
  }
};

/// Bytes of a call's buffers on `rank` of `n`.
[[nodiscard]] std::size_t input_bytes(const Call& call, Rank rank, std::size_t n);
[[nodiscard]] std::size_t output_bytes(const Call& call, Rank rank, std::size_t n);

}  // namespace chorus::testing
