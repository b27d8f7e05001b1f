// The transports this build has.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "transports/link/context.hpp"
#include "transports/link/link.hpp"

namespace chorus {

struct TransportFactory {
  std::string_view name;
  std::unique_ptr<Transport> (*make)(const TransportContext& context);
};

/// All transports of this build, best first: shm, rdma, tcp.
[[nodiscard]] std::span<const TransportFactory> transports();

}  // namespace chorus
