// What the driver says of a pointer, for those that have a context.
#pragma once

#include "device/driver/driver.hpp"
#include "runtime/gpu/communicator.hpp"

namespace chorus {

/// As DeviceCommunicator::place_of(), for who has the context at hand. Throws DeviceError.
[[nodiscard]] MemoryPlace ask_place(const void* memory, cuda::CurrentOnDemand& context);

/// Of a call's buffers; nothing of those that this rank needs not.
struct BufferPlaces {
  MemoryPlace input;
  MemoryPlace output;
};
/// Throws InputError, naming the buffer and the remedy, for memory that GPU `device` does not
/// reach. `context` is its.
[[nodiscard]] BufferPlaces check_buffers(const DeviceCall& call, Rank rank, int world_size,
                                         int device, cuda::CurrentOnDemand& context);

}  // namespace chorus
