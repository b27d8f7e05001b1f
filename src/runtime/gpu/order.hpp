// In which order the launches of one communicator run, whichever streams and graphs they come from.
#pragma once

#include <cstdint>
#include <span>

#include "device/driver/driver.hpp"
#include "runtime/gpu/communicator.hpp"

namespace chorus {

/// Kernels of one communicator share its rings, so one runs after the other: streams wait for an
/// event that every launch records. Graphs wait for and record it too, each time they run, by nodes
/// of their own. Made, finished and destroyed in the current context, which is that of `context`.
class DeviceOrder {
 public:
  DeviceOrder();

  /// What `stream` is given next runs when the launches before it have ended and the streams of all
  /// `calls` have come so far.
  void begin(std::span<const DeviceCall> calls, cuda::StreamHandle stream,
             cuda::CurrentOnDemand& context);
  /// The streams of all `calls` go on when `stream` has come so far.
  void end(std::span<const DeviceCall> calls, cuda::StreamHandle stream,
           cuda::CurrentOnDemand& context);
  /// Waits for the last launch.
  void finish() const;

 private:
  cuda::Event last_;      ///< of the last launch, or the last run of a captured one
  cuda::Event joined_;    ///< of streams that come together for a group
  cuda::Event captured_;  ///< of the last launch within the capture under way
  /// The capture that captured_ is of; 0: none. Captures have numbers of their own.
  unsigned long long capture_ = 0;
  std::uint64_t default_stream_ = 0;  ///< the default stream that was last launched in; 0: another
  bool capturing_ = false;            ///< between begin() and end()
};

}  // namespace chorus
