// Memory of another process, copied by the kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace chorus {

/// Bytes that a caller has read at once, so that it is not long away from a failure of others.
inline constexpr std::size_t kReadAtOnce = 4 << 20;

enum class ForeignRead {
  done,
  gone,            ///< the process has ended
  refused,         ///< this memory: a device's, say
  always_refused,  ///< by ptrace's rules, a filter of system calls, a user namespace
};

/// process_vm_readv() of [address, address + to.size()) of process `pid`.
[[nodiscard]] ForeignRead read_process(int pid, std::uint64_t address, std::span<std::byte> to);

}  // namespace chorus
