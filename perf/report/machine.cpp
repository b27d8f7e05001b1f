#include "perf/report/machine.hpp"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <sstream>

#include "base/files/kernel_text.hpp"
#include "perf/libraries.hpp"

namespace chorus::perf {
namespace {

/// User and system ticks of a process, all its threads; 0 if it is gone.
std::int64_t ticks_of(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(file, line);
  const std::size_t name_end = line.rfind(')');
  if (name_end == line.npos) return 0;
  std::istringstream fields(line.substr(name_end + 1));
  std::string field;
  for (int i = 3; i < 14; ++i) fields >> field;  // utime and stime are fields 14 and 15
  std::int64_t user = 0, system = 0;
  fields >> user >> system;
  return user + system;
}

}  // namespace

Machine this_machine() {
  Machine machine;
  machine.cpu = value_in(kernel_text("/proc/cpuinfo"), "model name");
  machine.cpus = usable_cpus();
  const double kib = std::atof(value_in(kernel_text("/proc/meminfo"), "MemTotal").c_str());
  machine.memory = fmt::format("{:.0f} GB", kib * 1024 / 1e9);
  utsname name{};
  if (::uname(&name) == 0) machine.kernel = name.release;
  machine.system = value_in(kernel_text("/etc/os-release"), "PRETTY_NAME");
  machine.tcp_congestion_control =
      value_in(kernel_text("/proc/sys/net/ipv4/tcp_congestion_control"), "");
  return machine;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

Ticks LoadMeter::now() const {
  std::ifstream file("/proc/stat");
  std::string word;
  file >> word;  // "cpu": user nice system idle iowait irq softirq steal
  std::int64_t field[8] = {};
  Ticks ticks;
  for (std::int64_t& value : field) {
    file >> value;
    ticks.total += value;
  }
  ticks.idle = field[3] + field[4];
  for (const pid_t pid : measured_) ticks.ours += ticks_of(pid);
  ticks.ours += ticks_of(::getpid());
  return ticks;
}

void LoadMeter::begin(std::vector<pid_t> measured) {
  measured_ = std::move(measured);
  begin_ = now();
}

Ticks LoadMeter::lap() const {
  const Ticks ticks = now();
  // A process that ended takes its ticks along; it cannot have used less than nothing.
  return {.total = ticks.total - begin_.total,
          .idle = ticks.idle - begin_.idle,
          .ours = std::max<std::int64_t>(0, ticks.ours - begin_.ours)};
}

void LoadMeter::add(const Ticks& ticks) {
  sum_.total += ticks.total;
  sum_.idle += ticks.idle;
  sum_.ours += ticks.ours;
}

Load LoadMeter::load() const {
  if (sum_.total <= 0) return {};
  const auto total = static_cast<double>(sum_.total);
  const auto others = static_cast<double>(sum_.total - sum_.idle - sum_.ours);
  return {.idle = static_cast<double>(sum_.idle) / total,
          .others = std::clamp(others / total, 0.0, 1.0)};
}

}  // namespace chorus::perf
