#include "base/descriptors.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace chorus {

void allow_descriptors(std::size_t count) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= count) return;
  limit.rlim_cur = std::min<rlim_t>(count, limit.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

bool lacks_descriptors(int error) { return error == EMFILE || error == ENFILE; }

std::string why_no_descriptor(int error) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const std::string remedy =
      error == EMFILE ? fmt::format("; raise their limit (ulimit -n, now {})", limit.rlim_cur)
                      : "; raise the machine's limit (sysctl fs.file-max)";
  return std::strerror(error) + remedy;
}

}  // namespace chorus
