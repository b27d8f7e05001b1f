#include "transports/shm/foreign_memory.hpp"

#include <sys/uio.h>

#include <cerrno>

namespace chorus {

ForeignRead read_process(int pid, std::uint64_t address, std::span<std::byte> to) {
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

}  // namespace chorus
