#include "transports/rdma/wire.hpp"

#include <algorithm>
#include <cstring>

namespace chorus {

void RdmaAddress::set_reason(std::string_view text) {
  const std::size_t length = std::min(text.size(), reason.size() - 1);
  std::memcpy(reason.data(), text.data(), length);
}

std::optional<RdmaAddress> RdmaAddress::parse(std::span<const std::byte> bytes) {
  RdmaAddress address;
  if (bytes.size() != sizeof address) return std::nullopt;
  std::memcpy(&address, bytes.data(), sizeof address);
  if (address.magic != kMagic || address.num_ports > kMaxRdmaPorts) return std::nullopt;
  if (address.queue_pairs < 1 || address.queue_pairs > 4) return std::nullopt;
  if (address.reason.back() != 0) return std::nullopt;
  for (const Port& port : address.ports) {
    if (port.device.back() != 0) return std::nullopt;
  }
  if (address.num_ports > 0 && !TcpAddress::parse(address.control.bytes())) return std::nullopt;
  return address;
}

}  // namespace chorus
