#include "transports/transports.hpp"

#include "transports/shm.hpp"

namespace chorus {

std::span<const TransportFactory> transports() {
  static constexpr TransportFactory kTransports[] = {{"shm", make_shm}};
  return kTransports;
}

}  // namespace chorus
