#include "base/files/descriptors.hpp"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/files/fd.hpp"

namespace chorus {

void allow_descriptors(std::size_t count) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= count) return;
  limit.rlim_cur = std::min<rlim_t>(count, limit.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

void allow_more_descriptors(std::size_t more) {
  // The kernel gives the lowest number that is free, and the limit is one of numbers.
  const Fd lowest(::eventfd(0, EFD_CLOEXEC));
  rlimit limit{};
  if (lowest) return allow_descriptors(static_cast<std::size_t>(lowest.get()) + more);
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) allow_descriptors(limit.rlim_cur + more);
}

bool lacks_descriptors(int error) { return error == EMFILE || error == ENFILE; }

std::string why_no_descriptor(int error) {
  if (error != EMFILE) {
    return fmt::format("{}; raise the machine's limit (sysctl fs.file-max)", std::strerror(error));
  }
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const bool hard = limit.rlim_cur == limit.rlim_max;
  return fmt::format(
      "{}: this process may have {}{} and needs more: raise the limit (ulimit {}-n {})",
      std::strerror(error), limit.rlim_cur, hard ? ", its hard limit," : "", hard ? "-H " : "",
      2 * limit.rlim_cur);
}

}  // namespace chorus
