// Which machine and namespaces this process lives in, as far as reaching a peer depends on it.
#pragma once

#include <array>
#include <cstdint>

namespace chorus {

/// Equal boots mean one kernel; equal namespace numbers on one kernel mean one namespace. No host
/// name: names repeat and containers invent them. Part of transport addresses, so plain bytes.
struct HostIdentity {
  std::array<std::uint8_t, 16> boot{};  ///< /proc/sys/kernel/random/boot_id; zeros if unreadable
  std::uint64_t pid_namespace = 0;      ///< inode of /proc/self/ns/pid
  std::uint64_t net_namespace = 0;      ///< inode of /proc/self/ns/net

  static HostIdentity here();
  static std::uint64_t user_namespace();  ///< inode of /proc/self/ns/user

  [[nodiscard]] bool same_network(const HostIdentity& other) const {
    return boot == other.boot && net_namespace == other.net_namespace;
  }
};

}  // namespace chorus
