// GPU memory beside the host's buffers of a collective, laid out as they are.
#pragma once

#include <cstddef>
#include <vector>

#include "device/driver/driver.hpp"
#include "perf/worker/backend.hpp"

namespace chorus::perf {

/// The GPU of a rank of this machine, all of whose GPUs are given out in turn, and a stream on it.
class Gpu {
 public:
  /// Throws chorus::Error saying why there is none. The GPU stays current on this thread.
  explicit Gpu(int rank);

  [[nodiscard]] int ordinal() const { return ordinal_; }
  [[nodiscard]] cuda::StreamHandle stream() const { return stream_.get(); }
  /// Until all that was enqueued is done.
  void wait() const;

 private:
  int ordinal_;
  cuda::PrimaryContext context_;
  cuda::Current current_;
  cuda::Stream stream_;
};

/// Where input and output overlap on the host, they do so on the GPU.
class GpuBuffers {
 public:
  /// `host` is what the loop prepared; its memory outlives this.
  GpuBuffers(const Gpu& gpu, const Operation& host, int rank, int world_size);

  /// The operation on GPU memory.
  [[nodiscard]] const Operation& operation() const { return operation_; }
  void bring() { copy(true); }
  void fetch() { copy(false); }

 private:
  struct Part {
    std::byte* host;
    std::size_t bytes;
    cuda::Memory gpu;
  };
  void add(std::byte* host, std::size_t bytes);
  [[nodiscard]] std::byte* on_gpu(const void* host, std::size_t bytes) const;
  void copy(bool to_gpu);

  const Gpu& gpu_;
  Operation operation_;
  std::vector<Part> parts_;
};

}  // namespace chorus::perf
