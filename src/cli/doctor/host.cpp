// Limits, memory, processors and interfaces of a host.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/files/kernel_text.hpp"
#include "cli/doctor/checks.hpp"

namespace chorus::doctor {
namespace {

/// The soft limit of /proc/self/limits that begins with `name`; nothing if unlimited or unknown.
std::optional<std::uint64_t> limit(const Files& files, std::string_view name) {
  for (const std::string& line : lines(files.text("proc/self/limits"))) {
    if (line.starts_with(name)) return number(std::string_view(line).substr(name.size()));
  }
  return std::nullopt;
}

/// The processors this process may use.
int usable(const Files& files) {
  constexpr std::string_view kName = "Cpus_allowed_list:";
  for (const std::string& line : lines(files.text("proc/self/status"))) {
    if (!line.starts_with(kName)) continue;
    const auto list = words(std::string_view(line).substr(kName.size()));
    if (!list.empty()) return static_cast<int>(listed(list[0]).size());
  }
  return 0;
}

/// Bytes of a line "MemTotal:  16 kB" of /proc/meminfo.
std::uint64_t meminfo(const Files& files, std::string_view name) {
  for (const std::string& line : lines(files.text("proc/meminfo"))) {
    if (line.starts_with(name)) {
      return number(std::string_view(line).substr(name.size())).value_or(0) << 10;
    }
  }
  return 0;
}

/// Our own directory of the unified hierarchy, and the root of it where containers show only that.
std::vector<std::string> cgroups(const Files& files) {
  std::vector<std::string> found;
  for (const std::string& line : lines(files.text("proc/self/cgroup"))) {
    if (!line.starts_with("0::/") || line.find("..") != std::string::npos) continue;
    std::string path = line.substr(4);
    for (std::size_t end = path.size(); end != std::string::npos && !path.empty();
         end = path.rfind('/')) {
      path.resize(std::min(end, path.size()));
      if (!path.empty()) found.push_back("sys/fs/cgroup/" + path + "/");
    }
  }
  found.emplace_back("sys/fs/cgroup/");
  return found;
}

void check_quota(const Files& files, int processors, Findings& findings) {
  for (const std::string& group : cgroups(files)) {
    const auto quota = words(files.line(group + "cpu.max"));
    if (quota.size() != 2) continue;
    const auto budget = number(quota[0]);
    const auto period = number(quota[1]);
    if (!budget || !period || *period == 0) continue;  // "max"
    const double share = static_cast<double>(*budget) / static_cast<double>(*period);
    if (share >= processors) continue;
    findings.push_back(
        {"cpu-quota", Severity::warning,
         fmt::format("the control group gives {:.3g} processors' worth of time on {}", share,
                     processors),
         "a rank that has used its share is stopped for the rest of the period, and all others "
         "wait "
         "for it",
         fmt::format("start no more than {} ranks here, or raise the quota: docker run --cpus, "
                     "CPUQuota= of systemd, limits.cpu of Kubernetes",
                     std::max(1, static_cast<int>(share)))});
    return;
  }
}

}  // namespace

void check_limits(const Scene& scene, Findings& findings) {
  const auto files = limit(scene.files, "Max open files");
  constexpr std::uint64_t kFiles = 4096;
  if (files && *files < kFiles) {
    findings.push_back({"open-files", Severity::warning,
                        fmt::format("a process may open {} files", *files),
                        "every peer takes a socket or two, and a coordinator one per rank",
                        "ulimit -n 65536, or nofile in /etc/security/limits.conf"});
  }
  const auto locked = limit(scene.files, "Max locked memory");
  constexpr std::uint64_t kLocked = std::uint64_t{1} << 30;
  if (locked && *locked < kLocked && !scene.adapters.empty()) {
    const bool hopeless = *locked < (std::uint64_t{64} << 20);
    findings.push_back(
        {"memlock", hopeless ? Severity::fault : Severity::warning,
         fmt::format("a process may lock {}", bytes_text(*locked)),
         "RDMA locks what an adapter reads and writes; registration fails beyond the limit",
         "ulimit -l unlimited, or memlock in /etc/security/limits.conf, LimitMEMLOCK=infinity for "
         "services (slurmd, sshd), docker run --ulimit memlock=-1"});
  }
  const auto processes = limit(scene.files, "Max processes");
  constexpr std::uint64_t kProcesses = 1024;
  if (processes && *processes < kProcesses) {
    findings.push_back({"processes", Severity::warning,
                        fmt::format("a user may have {} processes and threads", *processes),
                        "ranks are processes, and libraries that they load start threads",
                        "ulimit -u 65536, or nproc in /etc/security/limits.conf"});
  }
}

void check_memory(const Scene& scene, Findings& findings) {
  for (const std::string& line : lines(scene.files.text("proc/self/mounts"))) {
    const auto fields = words(line);
    if (fields.size() < 4 || fields[1] != "/dev/shm") continue;
    const std::size_t at = fields[3].find("size=");
    const auto kilobytes =
        at == std::string::npos ? std::nullopt : number(std::string_view(fields[3]).substr(at + 5));
    constexpr std::uint64_t kLeast = 1 << 20;
    if (!kilobytes || *kilobytes >= kLeast) continue;
    findings.push_back(
        {"shm-size", Severity::warning,
         fmt::format("/dev/shm holds {}", bytes_text(*kilobytes << 10)),
         "Chorus does not use it, but NCCL, MPI and data loaders do, and end with a "
         "bus error when it is full",
         "docker run --ipc=host or --shm-size=16g; mount -o remount,size=16g /dev/shm"});
    break;
  }
  const std::string pages = scene.files.line("sys/kernel/mm/transparent_hugepage/shmem_enabled");
  if (pages.find("[never]") != std::string::npos || pages.find("[deny]") != std::string::npos) {
    findings.push_back({"huge-pages", Severity::note, "shared memory gets no huge pages",
                        "ranks of one host copy through shared memory; with pages of 2 MiB large "
                        "messages miss the TLB less",
                        "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled"});
  }
  const std::uint64_t total = meminfo(scene.files, "MemTotal:");
  for (const std::string& group : cgroups(scene.files)) {
    const auto most = number(scene.files.line(group + "memory.max"));
    if (!most || (total > 0 && *most >= total)) continue;
    findings.push_back({"memory-limit", Severity::note,
                        fmt::format("the control group may use {} of the host's {}",
                                    bytes_text(*most), bytes_text(total)),
                        "shared memory counts for it; a rank beyond it is killed",
                        "docker run --memory, MemoryMax= of systemd, limits.memory of Kubernetes"});
    break;
  }
  const auto scope = number(scene.files.line("proc/sys/kernel/yama/ptrace_scope"));
  if (scope && *scope > 0) {
    findings.push_back(
        {"ptrace-scope", *scope > 1 ? Severity::warning : Severity::note,
         fmt::format("kernel.yama.ptrace_scope is {}", *scope),
         fmt::format("ranks of one host{} may not have the kernel copy each other's memory: where "
                     "that is faster (chorus probe --host), each byte is copied twice instead",
                     *scope > 1 ? "" : " that were not started by one process"),
         "sysctl kernel.yama.ptrace_scope=0; in a container also docker run --cap-add=SYS_PTRACE"});
  }
}

void check_processors(const Scene& scene, Findings& findings) {
  const int processors = usable(scene.files);
  const int online =
      static_cast<int>(listed(scene.files.line("sys/devices/system/cpu/online")).size());
  if (processors > 0 && online > processors) {
    findings.push_back(
        {"affinity", Severity::note,
         fmt::format("this process may use {} of {} processors", processors, online),
         "more ranks than processors take turns, and every hand-over waits for a turn",
         "taskset -p, --cpu-bind of srun, --bind-to none of mpirun"});
  }
  if (processors > 0) check_quota(scene.files, processors, findings);
  const auto load = words(scene.files.line("proc/loadavg"));
  const auto busy = load.empty() ? std::nullopt : number(load[0]);
  if (processors > 0 && busy && *busy > static_cast<std::uint64_t>(processors)) {
    findings.push_back(
        {"load", Severity::warning,
         fmt::format("{} processes want {} processors (load average)", load[0], processors),
         "ranks wait for each other actively; one that is not running holds up all",
         "top shows what runs; start fewer ranks or give the host to one job"});
  }
  const std::string clock =
      scene.files.line("sys/devices/system/clocksource/clocksource0/current_clocksource");
  if (clock == "hpet" || clock == "acpi_pm" || clock == "refined-jiffies" || clock == "jiffies") {
    findings.push_back(
        {"clock", Severity::warning, fmt::format("the kernel's clock is {}", clock),
         "reading the time is a system call of microseconds, and every wait reads it",
         "tsc=reliable on the kernel's command line, if the processor's counter is "
         "sound: dmesg | grep -i tsc"});
  }
  const std::string governor =
      scene.files.line("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  if (governor == "powersave" &&
      scene.files.line("sys/devices/system/cpu/cpu0/cpufreq/scaling_driver") != "intel_pstate") {
    findings.push_back({"governor", Severity::note, "processors run at their lowest frequency",
                        "latency through memory and sockets follows the frequency",
                        "cpupower frequency-set -g performance"});
  }
}

void check_network(const Scene& scene, Findings& findings) {
  std::map<std::uint64_t, std::vector<std::string>> by_mtu;  // of real interfaces that are up
  bool any = false;
  for (const std::string& name : scene.files.names("sys/class/net")) {
    const std::string base = "sys/class/net/" + name + "/";
    const std::string state = scene.files.line(base + "operstate");
    const bool up = state == "up" || state == "unknown";
    if (scene.files.line(base + "type") == "772") continue;  // loopback
    any = any || up;
    const bool real = scene.files.has(base + "device");
    if (real && state == "down" && scene.files.line(base + "carrier") == "0") {
      findings.push_back(
          {"cable", Severity::note, fmt::format("{} has no carrier", name),
           "a cable that is missing or a switch port that is off",
           fmt::format("ethtool {}; fine if nothing is meant to be plugged in", name)});
    }
    const auto mtu = number(scene.files.line(base + "mtu"));
    if (real && up && mtu) by_mtu[*mtu].push_back(name);
  }
  if (!any) {
    findings.push_back({"network", Severity::warning, "no interface but loopback is up",
                        "ranks of other hosts cannot be reached",
                        "ip link; ip link set dev NAME up; docker run --network=host"});
  }
  if (by_mtu.size() > 1) {
    std::string seen;
    for (const auto& [mtu, interfaces] : by_mtu) {
      seen += fmt::format("{}{} on {}", seen.empty() ? "MTU " : ", ", mtu,
                          fmt::join(interfaces, " and "));
    }
    findings.push_back(
        {"mtu", Severity::note, seen,
         "interfaces of one network must agree, here and on the other hosts: larger "
         "packets vanish without an error",
         "ip link set dev NAME mtu 9000, and ping -M do -s 8972 OTHER-HOST to see that "
         "the switches take it"});
  }
}

}  // namespace chorus::doctor
