#include "cli/run/run_needs.hpp"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

#include "base/counted.hpp"
#include "base/files/descriptors.hpp"
#include "chorus/error.hpp"

namespace chorus {
namespace {

/// Of the launcher, beside one connection per rank; and more where they may be had, for those that
/// have not proved the secret yet.
constexpr std::size_t kOtherFiles = 32, kStrangers = 384;
/// A process that has started and joined has touched more than this, whatever the program.
constexpr std::uint64_t kLeastBytes = 1 << 20;

/// The number that a file of the kernel's begins with; nothing where it is not there, or is "max".
std::optional<std::uint64_t> number_in(const char* path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

/// In bytes; nothing if the kernel does not say.
std::optional<std::uint64_t> available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  std::uint64_t kib = 0, sum = 0;
  bool known = false;
  while (file >> name >> kib && std::getline(file, unit)) {
    if (name != "MemAvailable:" && name != "SwapFree:") continue;
    known = true;
    sum += kib * 1024;
  }
  if (!known) return std::nullopt;
  // Of the control group, where there is one with a limit.
  const auto most = number_in("/sys/fs/cgroup/memory.max");
  const auto used = number_in("/sys/fs/cgroup/memory.current");
  if (most && used) sum = std::min(sum, *most > *used ? *most - *used : 0);
  return sum;
}

[[noreturn]] void refuse(std::size_t num_ranks, const std::string& needs) {
  throw InputError(fmt::format("{} {}; nothing was started",
                               counted(static_cast<long long>(num_ranks), "rank"), needs));
}

void require_files(std::size_t num_ranks, bool captures) {
  const std::size_t files = num_ranks * (captures ? 3 : 1) + kOtherFiles;
  allow_descriptors(files + kStrangers);
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < files) {
    refuse(num_ranks, fmt::format("need {} open files in the launcher, and its hard limit is {}: "
                                  "raise it (ulimit -Hn {}), or start fewer",
                                  files, limit.rlim_cur, files));
  }
}

void require_processes(std::size_t num_ranks) {
  const auto require = [&](std::uint64_t most, const std::string& what, const std::string& how) {
    if (most >= num_ranks) return;
    refuse(num_ranks,
           fmt::format("need as many processes, and {} {}: raise it ({}), or start fewer", what,
                       most, how));
  };
  rlimit limit{};
  if (::geteuid() != 0 && ::getrlimit(RLIMIT_NPROC, &limit) == 0 &&
      limit.rlim_cur != RLIM_INFINITY) {
    require(limit.rlim_cur, "this user may have", fmt::format("ulimit -u {}", 2 * num_ranks));
  }
  if (const auto most = number_in("/proc/sys/kernel/pid_max")) {
    require(*most, "this machine can have", fmt::format("sysctl kernel.pid_max={}", 4 * num_ranks));
  }
  if (const auto most = number_in("/sys/fs/cgroup/pids.max")) {
    require(*most, "this control group may have", "pids.max");
  }
}

}  // namespace

void require_room(std::size_t num_ranks, bool captures) {
  require_files(num_ranks, captures);
  require_processes(num_ranks);
  const std::uint64_t bytes = num_ranks * kLeastBytes;
  if (const auto available = available_memory(); available && *available < bytes) {
    refuse(num_ranks,
           fmt::format("need {} MB of memory at least, and {} MB are available: end other "
                       "programs, or start fewer",
                       bytes >> 20, *available >> 20));
  }
}

}  // namespace chorus
