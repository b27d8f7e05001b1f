// Shared memory between the processes (and threads) of one host.
#pragma once

#include <memory>

#include "transports/link/context.hpp"

namespace chorus {

/// Design and rejected designs: docs/transports/shm.md. Throws LinkError if the system gives no
/// memory.
[[nodiscard]] std::unique_ptr<Transport> make_shm(const TransportContext& context);

}  // namespace chorus
