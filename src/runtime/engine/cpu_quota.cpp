#include "runtime/engine/cpu_quota.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <sstream>
#include <string_view>

#include "base/files/kernel_text.hpp"

namespace chorus {
namespace {

constexpr double kNoQuota = 0;

double number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end != text.data() ? value : 0;
}

/// "200000 100000" or "max 100000".
double of_v2(const std::string& text) {
  const auto blank = text.find(' ');
  if (blank == std::string::npos) return kNoQuota;
  const double allowed = number(text);
  const double period = number(std::string_view(text).substr(blank + 1));
  return allowed > 0 && period > 0 ? allowed / period : kNoQuota;
}

double of_v1(const std::string& folder) {
  const double allowed = number(kernel_text(folder + "/cpu.cfs_quota_us"));  // -1: none
  const double period = number(kernel_text(folder + "/cpu.cfs_period_us"));
  return allowed > 0 && period > 0 ? allowed / period : kNoQuota;
}

double smaller(double a, double b) {
  if (a <= 0) return b;
  return b <= 0 ? a : std::min(a, b);
}

/// The least of a group and of those around it.
double least_up(const std::string& mount, std::string group, double (*of)(const std::string&)) {
  double least = kNoQuota;
  for (;;) {
    least = smaller(least, of(mount + group));
    if (group.empty() || group == "/") return least;
    group.resize(group.find_last_of('/'));
  }
}

}  // namespace

// Lines of /proc/self/cgroup: "0::/path" (v2), "4:cpu,cpuacct:/path" (v1).
double cpu_quota(const std::string& root) {
  std::istringstream lines(kernel_text(root + "/proc/self/cgroup"));
  double least = kNoQuota;
  for (std::string line; std::getline(lines, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    if (!group.starts_with('/')) continue;
    if (controllers == ",,") {
      least =
          smaller(least, least_up(root + "/sys/fs/cgroup", group, [](const std::string& folder) {
                    return of_v2(kernel_text(folder + "/cpu.max"));
                  }));
    } else if (controllers.find(",cpu,") != std::string::npos) {
      least = smaller(least, least_up(root + "/sys/fs/cgroup/cpu", group, of_v1));
    }
  }
  return least;
}

}  // namespace chorus
