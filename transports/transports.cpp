#include "transports/transports.hpp"

#include "transports/rdma.hpp"
#include "transports/shm.hpp"
#include "transports/tcp.hpp"

namespace chorus {

std::span<const TransportFactory> transports() {
  static constexpr TransportFactory kTransports[] = {
      {"shm", make_shm}, {"rdma", make_rdma}, {"tcp", make_tcp}};
  return kTransports;
}

}  // namespace chorus
