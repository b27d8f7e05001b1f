// Order between streams of GPUs, for callers of the DeviceCommunicator that use no CUDA of their
// own.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>

#include "chorus/export.hpp"

namespace chorus {

/// A point in a stream: all that had been enqueued there when the mark was made (a CUevent). May
/// outlive the stream and be used from any thread. What fails throws DeviceError.
class CHORUS_API DeviceMark {
 public:
  /// `stream` of GPU `device`: as in DeviceCall.
  DeviceMark(int device, void* stream);
  DeviceMark(DeviceMark&&) noexcept;
  DeviceMark& operator=(DeviceMark&&) noexcept;
  ~DeviceMark();

  /// What is enqueued in `stream` of any GPU from now on begins after the mark. Returns at once.
  void hold(void* stream) const;
  /// True once all before the mark has run.
  [[nodiscard]] bool passed() const;
  /// Returns when the mark is passed.
  void wait() const;
  /// The same; false if it is not passed within `limit`.
  [[nodiscard]] bool wait_for(std::chrono::milliseconds limit) const;

 private:
  struct CHORUS_LOCAL Impl;
  std::unique_ptr<Impl> impl_;
};

/// Enqueues a copy between memory that GPU `device` can access. Throws DeviceError.
CHORUS_API void device_copy(int device, void* to, const void* from, std::size_t size_bytes,
                            void* stream);

}  // namespace chorus
