// chorus doctor on machines made of files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>

#include "chorus/error.hpp"
#include "cli/doctor/findings.hpp"
#include "cli/doctor/hosts.hpp"
#include "tests/base/fuzz.hpp"

namespace chorus::doctor {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* kRoot = "sys/devices/pci0000:00/0000:00:01.0/";  // a switch's upstream port
constexpr const char* kGpu = "sys/devices/pci0000:00/0000:00:01.0/0000:02:00.0/0000:03:00.0/";
constexpr const char* kNic = "sys/devices/pci0000:00/0000:00:01.0/0000:02:01.0/0000:04:00.0/";
constexpr const char* kPort = "sys/class/infiniband/mlx5_0/ports/1/";

/// A machine to which nobody could object: a GPU and a RoCE adapter below one switch.
class Doctor : public ::testing::Test {
 protected:
  Doctor() {
    std::string pattern = (fs::temp_directory_path() / "chorus-doctor-XXXXXX").string();
    root_ = ::mkdtemp(pattern.data());
    put("proc/self/limits",
        "Limit                     Soft Limit           Hard Limit           Units\n"
        "Max processes             96365                96365                processes\n"
        "Max open files            65536                65536                files\n"
        "Max locked memory         unlimited            unlimited            bytes");
    put("proc/self/status", "Name:\tdoctor\nCpus_allowed_list:\t0-3,8-11");
    put("proc/self/mounts", "tmpfs /dev/shm tmpfs rw,nosuid,size=33554432k 0 0");
    put("proc/self/cgroup", "0::/job");
    put("proc/loadavg", "1.20 0.90 0.70 2/400 1234");
    put("proc/meminfo", "MemTotal:       65536000 kB");
    put("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64");
    put("sys/fs/cgroup/job/cpu.max", "max 100000");
    put("sys/fs/cgroup/job/memory.max", "max");
    put("sys/devices/system/cpu/online", "0-3,8-11");
    put("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc");
    put("sys/kernel/mm/transparent_hugepage/shmem_enabled", "always within_size [advise] never");
    put("sys/class/net/lo/type", "772");
    interface("ens1", "9000");
    pci(kRoot, "0x060400", "0x1000", "");
    pci("sys/devices/pci0000:00/0000:00:01.0/0000:02:00.0/", "0x060400", "0x1000", "");
    pci("sys/devices/pci0000:00/0000:00:01.0/0000:02:01.0/", "0x060400", "0x1000", "");
    pci(kGpu, "0x030200", "0x10de", "nvidia");
    pci(kNic, "0x020000", "0x15b3", "mlx5_core");
    for (const char* bridge : {"0000:02:00.0", "0000:02:01.0"}) {
      put(std::string(kRoot) + bridge + "/config", config(0));
    }
    adapter();
  }
  ~Doctor() override { fs::remove_all(root_); }

  void put(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path, std::ios::binary) << text << '\n';
  }
  void remove(const std::string& path) { fs::remove_all(root_ / path); }
  void interface(const std::string& name, const std::string& mtu) {
    put("sys/class/net/" + name + "/type", "1");
    put("sys/class/net/" + name + "/operstate", "up");
    put("sys/class/net/" + name + "/mtu", mtu);
    put("sys/class/net/" + name + "/device/vendor", "0x15b3");
  }
  void pci(const std::string& path, const char* device_class, const char* vendor,
           const std::string& driver) {
    put(path + "class", device_class);
    put(path + "vendor", vendor);
    put(path + "numa_node", "0");
    fs::create_directories(root_ / "sys/bus/pci/devices");
    const std::string name = fs::path(path).parent_path().filename().string();
    fs::create_directory_symlink(root_ / fs::path(path).parent_path(),
                                 root_ / "sys/bus/pci/devices" / name);
    if (driver.empty()) return;
    fs::create_directories(root_ / "sys/bus/pci/drivers" / driver);
    fs::create_directory_symlink("../../../bus/pci/drivers/" + driver, root_ / path / "driver");
  }
  void adapter() {
    const std::string port = kPort;
    put(port + "link_layer", "Ethernet");
    put(port + "state", "4: ACTIVE");
    put(port + "phys_state", "5: LinkUp");
    put(port + "rate", "100 Gb/sec (4X EDR)");
    put(port + "gid_attrs/ndevs/0", "ens1");
    put(port + "gid_attrs/types/0", "RoCE v2");
    put(port + "gids/0", "0000:0000:0000:0000:0000:ffff:0a00:0007");
    fs::create_directory_symlink(root_ / fs::path(kNic).parent_path(),
                                 root_ / "sys/class/infiniband/mlx5_0/device");
    put("sys/class/infiniband_verbs/abi_version", "6");
    put("dev/infiniband/uverbs0", "");
    put("usr/lib/x86_64-linux-gnu/libibverbs.so.1", "");
    put("etc/libibverbs.d/mlx5.driver", "driver mlx5");
  }
  /// A function's configuration space with these ACS controls behind another capability.
  static std::string config(unsigned controls) {
    std::string bytes(4096, '\0');
    bytes[0x100] = 1;     // advanced error reporting
    bytes[0x103] = 0x14;  // the next at 0x140: bits 4 to 11 of 0x140
    bytes[0x102] = 0x01;
    bytes[0x140] = 0x0d;  // Access Control Services
    bytes[0x142] = 0x01;
    bytes[0x146] = static_cast<char>(controls);
    return bytes;
  }

  std::vector<Finding> look() const {
    Machine machine{root_.string(), {}};
    NvmlGpu gpu;
    gpu.address = *PciAddress::parse("0000:03:00.0");
    machine.gpus.gpus.push_back(gpu);
    return examine(machine);
  }
  /// The only finding there is; its seen, why and remedy are not empty.
  Finding only() const {
    const std::vector<Finding> findings = look();
    EXPECT_EQ(findings.size(), 1U) << text_of(findings);
    if (findings.empty()) return {};
    EXPECT_FALSE(findings[0].seen.empty());
    EXPECT_FALSE(findings[0].why.empty());
    return findings[0];
  }
  void expect(const std::string& check, Severity severity, const std::string& remedy) const {
    const Finding found = only();
    EXPECT_EQ(found.check, check);
    EXPECT_EQ(name_of(found.severity), name_of(severity)) << found.check;
    EXPECT_THAT(found.remedy, HasSubstr(remedy)) << found.check;
  }

  fs::path root_;
};

TEST_F(Doctor, FindsNothingWhereNothingIsWrong) {
  EXPECT_THAT(look(), IsEmpty()) << text_of(look());
}

TEST_F(Doctor, LimitsOnLockedMemoryMatterOnlyWithAdapters) {
  put("proc/self/limits", "Max locked memory         8388608              8388608         bytes");
  expect("memlock", Severity::fault, "ulimit -l unlimited");
  put("proc/self/limits", "Max locked memory         268435456            268435456       bytes");
  expect("memlock", Severity::warning, "memlock=-1");
  remove("sys/class/infiniband");
  const auto findings = look();
  EXPECT_TRUE(std::none_of(findings.begin(), findings.end(),
                           [](const Finding& one) { return one.check == "memlock"; }));
}

TEST_F(Doctor, EachThingThatIsWrongWithAHostIsFoundAlone) {
  const struct {
    const char* path;
    const char* text;
    const char* check;
    Severity severity;
    const char* remedy;
  } kCases[] = {
      {"proc/self/limits", "Max open files            256    256    files", "open-files",
       Severity::warning, "ulimit -n"},
      {"proc/self/limits", "Max processes             100    100    processes", "processes",
       Severity::warning, "ulimit -u"},
      {"proc/self/mounts", "shm /dev/shm tmpfs rw,size=65536k 0 0", "shm-size", Severity::warning,
       "--shm-size"},
      {"sys/kernel/mm/transparent_hugepage/shmem_enabled", "always within_size advise [never]",
       "huge-pages", Severity::note, "shmem_enabled"},
      {"proc/sys/kernel/yama/ptrace_scope", "1", "ptrace-scope", Severity::note, "sysctl"},
      {"proc/sys/kernel/yama/ptrace_scope", "2", "ptrace-scope", Severity::warning, "sysctl"},
      {"sys/fs/cgroup/job/memory.max", "1073741824", "memory-limit", Severity::note, "--memory"},
      {"sys/fs/cgroup/job/cpu.max", "200000 100000", "cpu-quota", Severity::warning, "2 ranks"},
      {"sys/devices/system/cpu/online", "0-15", "affinity", Severity::note, "taskset"},
      {"proc/loadavg", "23.10 9.0 3.0 2/400 1234", "load", Severity::warning, "top"},
      {"sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet", "clock",
       Severity::warning, "tsc"},
      {"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave", "governor",
       Severity::note, "performance"},
  };
  for (const auto& one : kCases) {
    const fs::path path = root_ / one.path;
    const bool existed = fs::exists(path);
    const fs::path kept = root_ / "kept";
    if (existed) fs::rename(path, kept);
    put(one.path, one.text);
    expect(one.check, one.severity, one.remedy);
    remove(one.path);
    if (existed) fs::rename(kept, path);
  }
  EXPECT_THAT(look(), IsEmpty());
}

TEST_F(Doctor, NamesInterfacesThatDisagree) {
  interface("ens2", "1500");
  const Finding found = only();
  EXPECT_EQ(found.check, "mtu");
  EXPECT_THAT(found.seen, AllOf(HasSubstr("1500 on ens2"), HasSubstr("9000 on ens1")));
}

TEST_F(Doctor, MissingUserSpaceOfRdmaIsAFault) {
  remove("etc/libibverbs.d");
  expect("provider", Severity::fault, "ibverbs-providers");
  remove("usr");
  expect("libibverbs", Severity::fault, "libibverbs1");
  put("usr/lib64/libibverbs.so.1", "");
  put("etc/libibverbs.d/mlx5.driver", "driver mlx5");
  // Not even root may use a link to itself.
  remove("dev/infiniband/uverbs0");
  fs::create_symlink("uverbs0", root_ / "dev/infiniband/uverbs0");
  expect("uverbs", Severity::fault, "chmod 666");
  remove("dev/infiniband");
  expect("uverbs", Severity::fault, "--device=/dev/infiniband");
  remove("sys/class/infiniband_verbs");
  expect("uverbs", Severity::fault, "modprobe ib_uverbs");
}

TEST_F(Doctor, AnAdapterWithoutRdmaIsNamed) {
  remove("sys/class/infiniband");
  const Finding found = only();
  EXPECT_EQ(found.check, "rdma-driver");
  EXPECT_THAT(found.seen, AllOf(HasSubstr("0000:04:00.0"), HasSubstr("mlx5_core")));
  EXPECT_THAT(found.remedy, HasSubstr("mlx5_ib"));
}

TEST_F(Doctor, PortsThatAreDownOrNarrowAreNamed) {
  put(std::string(kPort) + "rate", "25 Gb/sec (1X EDR)");
  expect("rdma-width", Severity::warning, "cable");
  put(std::string(kPort) + "state", "1: DOWN");
  put(std::string(kPort) + "phys_state", "3: Disabled");
  std::vector<Finding> findings = look();
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_EQ(findings[0].check, "rdma") << "the worst first: no port is left";
  EXPECT_EQ(findings[0].severity, Severity::fault);
  EXPECT_THAT(findings[1].seen, HasSubstr("mlx5_0 port 1 is DOWN (Disabled)"));
  EXPECT_THAT(findings[1].remedy, HasSubstr("ip link set dev ens1 up"));
  put(std::string(kPort) + "state", "2: INIT");
  findings = look();
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_THAT(findings[1].remedy, HasSubstr("opensm"));
}

TEST_F(Doctor, GidsThatReachNobodyAreNamed) {
  const std::string gid = std::string(kPort) + "gids/0";
  put(gid, "fe80:0000:0000:0000:688c:08ff:fedb:2bb1");
  expect("gid", Severity::note, "ip addr add");
  put(std::string(kPort) + "gid_attrs/types/0", "IB/RoCE v1");
  expect("gid", Severity::warning, "cma_roce_mode -d mlx5_0");
  put(gid, "0000:0000:0000:0000:0000:0000:0000:0000");
  expect("gid", Severity::fault, "dev ens1");
}

TEST_F(Doctor, SmallPacketsOfRoceAreNamed) {
  put("sys/class/net/ens1/mtu", "1500");
  expect("roce-mtu", Severity::note, "mtu 9000");
}

TEST_F(Doctor, GpuMemoryOutOfReachOfAdaptersIsNamed) {
  put("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08");
  expect("peer-memory", Severity::warning, "modprobe nvidia_peermem");
  put("sys/module/nvidia_peermem/refcnt", "0");
  expect("peer-memory", Severity::note, "open kernel modules");
  put("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64");
  EXPECT_THAT(look(), IsEmpty());
  put("proc/sys/kernel/osrelease", "5.4.0-150-generic");
  expect("peer-memory", Severity::warning, "5.12");
  put("proc/sys/kernel/osrelease", "5.14.0-427.el9.x86_64");
  EXPECT_THAT(look(), IsEmpty());
}

TEST_F(Doctor, WhatStandsBetweenGpusAndAdaptersIsNamed) {
  put(std::string(kGpu) + "iommu_group/type", "DMA-FQ");
  expect("iommu", Severity::warning, "iommu=pt");
  put(std::string(kGpu) + "iommu_group/type", "identity");
  EXPECT_THAT(look(), IsEmpty());
  put(std::string(kRoot) + "0000:02:00.0/config", config(0x1d));
  const Finding acs = only();
  EXPECT_EQ(acs.check, "acs");
  EXPECT_THAT(acs.seen, HasSubstr("0000:02:00.0"));
  EXPECT_THAT(acs.remedy, HasSubstr("setpci -s 0000:02:00.0"));
  for (const char* bridge : {"0000:02:00.0", "0000:02:01.0"}) {
    put(std::string(kRoot) + bridge + "/config",
        std::string(63, '\0'));  // as others than root see it
  }
  expect("acs", Severity::note, "sudo");
  put(std::string(kRoot) + "0000:02:00.0/config", config(0));
  put(std::string(kNic) + "numa_node", "1");
  expect("gpu-nic-distance", Severity::note, "socket");
}

TEST_F(Doctor, GpusThatDoNotWorkAreNamed) {
  Machine machine{root_.string(), {}};
  std::vector<Finding> findings = examine(machine);  // a driver whose library lists nothing
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].check, "nvml");
  machine.gpus.lost.push_back("GPU 0 is left out: GPU is lost (error 15)");
  findings = examine(machine);
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_THAT(findings[1].seen, HasSubstr("GPU is lost"));
  remove(std::string(kGpu) + "driver");
  expect("gpu-driver", Severity::warning, "driver");
}

TEST_F(Doctor, WithoutFilesThereIsNothingToSay) {
  const fs::path empty = root_ / "empty";
  fs::create_directories(empty);
  for (const Finding& one : examine({empty.string(), {}})) EXPECT_EQ(one.check, "network");
}

TEST_F(Doctor, PrintsTheWorstFirstAndJsonForScripts) {
  put("proc/loadavg", "23.10 9.0 3.0 2/400 1234");
  put("proc/self/limits", "Max locked memory         8388608              8388608         bytes");
  const auto findings = look();
  EXPECT_EQ(worst(findings), Severity::fault);
  EXPECT_THAT(text_of(findings), AllOf(testing::StartsWith("fault    memlock: "),
                                       HasSubstr("1 fault, 1 warning, 0 notes")));
  EXPECT_THAT(json_of(findings),
              AllOf(HasSubstr("\"format\": \"chorus-doctor\""),
                    HasSubstr("\"check\": \"memlock\",\n      \"severity\": \"fault\"")));
  EXPECT_EQ(worst({}), Severity::note);
}

TEST_F(Doctor, DamagedFilesDoNoHarm) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(root_)) {
    if (entry.is_regular_file() && !entry.is_symlink()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::mt19937 random(20261121);
  constexpr std::string_view kWords[] = {
      "99999999999999999999", "-1", "\xff\xfe", "/../..", "max", "0-"};
  const auto end = test::fuzz_end(0.5);
  int looks = 0;
  do {
    const fs::path& path = files[random() % files.size()];
    std::ifstream in(path, std::ios::binary);
    const std::string good{std::istreambuf_iterator<char>(in), {}};
    std::ofstream(path, std::ios::binary) << test::mutated(good, kWords, good, random);
    for (const Finding& one : look()) {
      EXPECT_FALSE(one.seen.empty());
      EXPECT_NO_THROW((void)json_of({one}));
    }
    std::ofstream(path, std::ios::binary) << good;
  } while (++looks < 8 || std::chrono::steady_clock::now() < end);
}

TEST(DoctorOfAJob, NamesTheHostsOfAFindingOnceAndTheWorstFirst) {
  const Finding note{
      .check = "clock", .severity = Severity::note, .seen = "slow", .why = "w", .remedy = ""};
  const Finding fault{
      .check = "memlock", .severity = Severity::fault, .seen = "8 MiB", .why = "w", .remedy = "r"};
  const auto all = merged({{.host = "a", .findings = {note}, .facts = {{"kernel", "6.1"}}},
                           {.host = "b", .findings = {note, fault}, .facts = {{"kernel", "6.1"}}},
                           {.host = "c", .findings = {}, .facts = {{"kernel", "6.2"}}}});
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0].check, "memlock");
  EXPECT_THAT(all[0].hosts, ::testing::ElementsAre("b"));
  EXPECT_EQ(all[1].check, "hosts-differ");
  EXPECT_EQ(all[1].severity, Severity::warning);
  EXPECT_EQ(all[1].seen, "kernel: 6.1 on a, b; 6.2 on c");
  EXPECT_THAT(all[2].hosts, ::testing::ElementsAre("a", "b"));
  EXPECT_THAT(text_of(all), ::testing::HasSubstr("on:  a, b\n"));
  EXPECT_THAT(json_of(all), ::testing::ContainsRegex(
                                R"("hosts": \[[[:space:]]*"a",[[:space:]]*"b"[[:space:]]*\])"));
}

TEST(DoctorOfAJob, HostsThatAreAlikeHaveNoDifferenceToTell) {
  const HostReport host{.host = "a", .findings = {}, .facts = facts_of({.root = "/", .gpus = {}})};
  HostReport other = host;
  other.host = "b";
  EXPECT_TRUE(merged({host, other}).empty());
  EXPECT_FALSE(host.facts.at("kernel").empty());
  EXPECT_EQ(host_report_from_json(to_json(host)), host);
  for (
      const char* bad :
      {"", "{}", "[]", R"({"host":1,"facts":{},"findings":[]})",
       R"({"host":"a","facts":{},"findings":[{"check":"x","severity":7,"seen":"","why":"","remedy":""}]})"}) {
    EXPECT_THROW((void)host_report_from_json(bad), InputError) << bad;
  }
}

}  // namespace
}  // namespace chorus::doctor
