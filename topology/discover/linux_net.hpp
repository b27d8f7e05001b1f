// Network interfaces as the Linux kernel lists them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "topology/discover/box.hpp"

namespace chorus {

struct NetInterface {
  NetPort port;                   ///< detail: state and addresses
  std::optional<PciAddress> pci;  ///< of the adapter, if it has one

  bool operator==(const NetInterface&) const = default;
};

/// Interfaces below `sys`/class/net in order of name, without loopback and without virtual ones
/// that are down. `sys` is "/sys" but in tests. What cannot be read is left out.
[[nodiscard]] std::vector<NetInterface> linux_interfaces(const std::string& sys);

}  // namespace chorus
