#include "transports/shm/foreign_memory.hpp"

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>

#include "base/copy.hpp"

namespace chorus {
namespace {

ForeignRead read_straight(int pid, std::uint64_t address, std::span<std::byte> to) {
  for (std::size_t done = 0; done < to.size();) {
    const iovec local{to.data() + done, to.size() - done};
    // An address that travelled as a number.
    void* const there =
        reinterpret_cast<void*>(address + done);  // NOLINT(performance-no-int-to-ptr)
    const iovec remote{there, to.size() - done};
    const ssize_t copied = ::process_vm_readv(pid, &local, 1, &remote, 1, 0);
    if (copied > 0) {
      done += static_cast<std::size_t>(copied);
    } else if (copied < 0 && errno == EINTR) {
      continue;
    } else if (copied < 0 && errno == ESRCH) {
      return ForeignRead::gone;
    } else {
      const bool this_memory = copied == 0 || errno == EFAULT || errno == ENOMEM;
      return this_memory ? ForeignRead::refused : ForeignRead::always_refused;
    }
  }
  return ForeignRead::done;
}

constexpr std::size_t kLine = 64;
/// Stays in the second-level cache.
constexpr std::size_t kBounceBytes = 128 * 1024;
struct alignas(kLine) Bounce {
  std::array<std::byte, kBounceBytes + kLine> bytes;
};

/// By way of memory that begins where in a line the peer's does.
ForeignRead read_by_bounce(int pid, std::uint64_t address, std::span<std::byte> to) {
  thread_local const auto bounce = std::make_unique<Bounce>();
  for (std::size_t done = 0; done < to.size();) {
    const std::size_t size = std::min(kBounceBytes, to.size() - done);
    const std::span<std::byte> part(bounce->bytes.data() + address % kLine, size);
    const ForeignRead read = read_straight(pid, address + done, part);
    if (read != ForeignRead::done) return read;
    copy_bytes(to.data() + done, part.data(), size);
    done += size;
  }
  return ForeignRead::done;
}

}  // namespace

ForeignRead read_process(int pid, std::uint64_t address, std::span<std::byte> to) {
  // As a number it has been received, and as a pointer it is not followed here.
  const auto* const there =
      reinterpret_cast<const void*>(address);  // NOLINT(performance-no-int-to-ptr)
  return chases(to.data(), there) ? read_by_bounce(pid, address, to)
                                  : read_straight(pid, address, to);
}

}  // namespace chorus
