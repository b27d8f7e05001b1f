// What a transport is made with.
#pragma once

#include <memory>
#include <string>

#include "base/secret.hpp"
#include "transports/link/link.hpp"
#include "transports/link/rdma_settings.hpp"
#include "transports/link/wakeups.hpp"

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

}  // namespace chorus
