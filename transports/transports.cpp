#include "transports/transports.hpp"

#include "transports/rdma/rdma.hpp"
#include "transports/shm/shm.hpp"
#include "transports/tcp/tcp.hpp"

namespace chorus {

std::span<const TransportFactory> transports() {
  static constexpr TransportFactory kTransports[] = {
      {"shm", make_shm}, {"rdma", make_rdma}, {"tcp", make_tcp}};
  return kTransports;
}

}  // namespace chorus
