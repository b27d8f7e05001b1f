#include "transports/link/host_identity.hpp"

#include <sys/stat.h>

#include <string_view>

#include "base/host.hpp"

namespace chorus {
namespace {

std::uint64_t inode_of(const char* path) {
  struct stat status {};
  return ::stat(path, &status) == 0 ? status.st_ino : 0;
}

/// "6ba7b810-9dad-11d1-80b4-00c04fd430c8" as its 16 bytes.
std::array<std::uint8_t, 16> parse_uuid(std::string_view text) {
  std::array<std::uint8_t, 16> bytes{};
  std::size_t digits = 0;
  for (const char c : text) {
    int value = -1;
    if (c >= '0' && c <= '9') value = c - '0';
    if (c >= 'a' && c <= 'f') value = c - 'a' + 10;
    if (value < 0 || digits == 32) continue;
    auto& byte = bytes[digits / 2];
    byte = static_cast<std::uint8_t>(byte << 4 | value);
    ++digits;
  }
  return bytes;
}

}  // namespace

std::uint64_t HostIdentity::user_namespace() { return inode_of("/proc/self/ns/user"); }

HostIdentity HostIdentity::here() {
  HostIdentity identity;
  identity.boot = parse_uuid(boot_id());
  identity.pid_namespace = inode_of("/proc/self/ns/pid");
  identity.net_namespace = inode_of("/proc/self/ns/net");
  return identity;
}

}  // namespace chorus
