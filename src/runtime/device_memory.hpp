// What the driver says of a pointer, for those that have made a context current.
#pragma once

#include "runtime/device_communicator.hpp"

namespace chorus {

/// As DeviceCommunicator::place_of(), in the current context. Throws DeviceError.
[[nodiscard]] MemoryPlace place_in_context(const void* memory);

/// Of a call's buffers; nothing of those that this rank needs not.
struct BufferPlaces {
  MemoryPlace input;
  MemoryPlace output;
};
/// Throws InputError, naming the buffer and the remedy, for memory that GPU `device` does not
/// reach. Its context is current.
[[nodiscard]] BufferPlaces check_buffers(const DeviceCall& call, Rank rank, int world_size,
                                         int device);

}  // namespace chorus
