// TCP, over IPv4 or IPv6, between any two hosts.
#pragma once

#include <memory>

#include "transports/link/context.hpp"

namespace chorus {

/// Design and rejected designs: docs/transports/tcp.md. Throws InputError if the context's
/// interface does not exist, LinkError if it is not possible to listen there.
[[nodiscard]] std::unique_ptr<Transport> make_tcp(const TransportContext& context);

}  // namespace chorus
