// What takes the place of rdma.cpp in builds without the header of libibverbs.
#include "transports/rdma/absent.hpp"

#include "transports/rdma/rdma.hpp"

namespace chorus {
namespace {

constexpr const char* kReason = "built without libibverbs-dev";

}  // namespace

std::unique_ptr<Transport> make_rdma(const TransportContext& context) {
  return std::make_unique<AbsentRdma>(kReason, context.rdma);
}

std::optional<std::string> why_no_rdma(const RdmaSettings&) { return kReason; }

}  // namespace chorus
