#include "base/files/foreign_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "base/files/descriptors.hpp"

namespace chorus {

// A path descriptor comes first: opening for real what a reused pid offers could block or have
// effects.
Fd open_foreign(int pid, int fd, unsigned kind, std::uint64_t inode, int flags,
                std::string& reason) {
  const std::string path = fmt::format("/proc/{}/fd/{}", pid, fd);
  const auto cannot = [&] {
    const int error = errno;
    reason =
        fmt::format("cannot open {}: {}", path,
                    lacks_descriptors(error) ? why_no_descriptor(error) : std::strerror(error));
    if (error == EACCES || error == EPERM) reason += " (is it another user's process?)";
    if (error == ENOENT) reason += " (has it ended, or is /proc hidden?)";
    return Fd();
  };
  const Fd seen(::open(path.c_str(), O_PATH | O_CLOEXEC));
  if (!seen) return cannot();
  struct stat status {};
  if (::fstat(seen.get(), &status) != 0 || (status.st_mode & S_IFMT) != kind ||
      status.st_ino != inode) {
    reason = fmt::format("{} is not what the peer published; it must have ended", path);
    return {};
  }
  Fd opened(::open(fmt::format("/proc/self/fd/{}", seen.get()).c_str(), flags | O_CLOEXEC));
  return opened ? std::move(opened) : cannot();
}

}  // namespace chorus
