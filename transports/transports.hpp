// The transports this build has.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/secret.hpp"
#include "transports/link.hpp"
#include "transports/rdma_settings.hpp"
#include "transports/wakeups.hpp"

namespace chorus {

/// Who a transport object speaks for.
struct TransportContext {
  Rank rank = 0;
  int world_size = 1;
  /// Known to the members of the communicator alone; the same on all of them. Every connection
  /// proves knowledge of it before anything else is read.
  Secret secret;
  LinkConfig link;
  /// Of this rank, shared by its communicators; null: one of its own.
  std::shared_ptr<Wakeups> wakeups;
  /// Interface name or address to listen on and connect from (tcp, and rdma's control connections);
  /// several, separated by commas, are used beside each other (tcp); empty: loopback.
  std::string interface_name;
  /// Whether tcp also uses the machine's other interfaces that lead out of it.
  bool other_interfaces = false;
  int tcp_sockets = 2;
  RdmaSettings rdma;
};

struct TransportFactory {
  std::string_view name;
  std::unique_ptr<Transport> (*make)(const TransportContext& context);
};

/// All transports of this build, best first: shm, rdma, tcp.
[[nodiscard]] std::span<const TransportFactory> transports();

}  // namespace chorus
