#include "base/files/file_size.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

namespace chorus {

bool allow_file_size(std::uint64_t bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur >= bytes) return true;
  if (limit.rlim_max < bytes) return false;
  limit.rlim_cur = bytes;
  return ::setrlimit(RLIMIT_FSIZE, &limit) == 0;
}

std::string why_no_file_size(std::uint64_t bytes) {
  rlimit limit{};
  ::getrlimit(RLIMIT_FSIZE, &limit);
  return fmt::format(
      "shared memory of {} bytes is more than a file may have: raise the limit (ulimit -f "
      "unlimited; now {} bytes)",
      bytes, limit.rlim_max);
}

}  // namespace chorus
