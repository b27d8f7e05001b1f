// RDMA between hosts: InfiniBand and RoCE.
#pragma once

#include <memory>

#include "transports/link/context.hpp"

namespace chorus {

/// Design and rejected designs: docs/transports/rdma.md. Where there is no libibverbs, no adapter
/// or none that is fit, the transport reaches nobody and says why.
[[nodiscard]] std::unique_ptr<Transport> make_rdma(const TransportContext& context);

/// Why this machine has no rdma under `settings`; nothing if it has.
[[nodiscard]] std::optional<std::string> why_no_rdma(const RdmaSettings& settings);

}  // namespace chorus
