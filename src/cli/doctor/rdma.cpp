// RDMA adapters: drivers, libraries, ports, GIDs, packet sizes.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "cli/doctor/checks.hpp"

namespace chorus::doctor {
namespace {

constexpr unsigned kMellanox = 0x15b3;

/// Where distributions put libraries.
constexpr std::string_view kLibraries[] = {"usr/lib/x86_64-linux-gnu",
                                           "usr/lib/aarch64-linux-gnu",
                                           "usr/lib64",
                                           "usr/lib",
                                           "lib/x86_64-linux-gnu",
                                           "lib64"};

bool has_library(const Files& files, std::string_view name) {
  return std::any_of(std::begin(kLibraries), std::end(kLibraries), [&](std::string_view directory) {
    return files.has(fmt::format("{}/{}", directory, name));
  });
}

/// libibverbs's name for who serves an adapter; empty if this page does not know it.
std::string provider_of(const Files& files, const Adapter& adapter) {
  static const std::map<std::string, std::string> of_driver = {
      {"mlx5_core", "mlx5"}, {"mlx4_core", "mlx4"}, {"bnxt_en", "bnxt_re"}, {"ice", "irdma"},
      {"efa", "efa"},        {"hns3", "hns"},       {"qede", "qedr"},       {"mana", "mana"}};
  if (!adapter.pci)
    return files.has("sys/class/infiniband/" + adapter.name + "/parent") ? "rxe" : "";
  const auto it = of_driver.find(adapter.pci->driver);
  return it == of_driver.end() ? "" : it->second;
}

void check_drivers(const Scene& scene, Findings& findings) {
  for (const Pci& pci : scene.pci) {
    const bool adapter = pci.vendor == kMellanox && pci.device_class >> 8 == 0x02;
    const bool served =
        std::any_of(scene.adapters.begin(), scene.adapters.end(),
                    [&](const Adapter& one) { return one.pci && one.pci->address == pci.address; });
    if (!adapter || served) continue;
    findings.push_back(
        {"rdma-driver", Severity::warning,
         fmt::format("the adapter at {} ({}) offers no RDMA", pci.address.text(),
                     pci.driver.empty() ? "no driver" : "driver " + pci.driver),
         "its data would go through TCP",
         "modprobe mlx5_ib (mlx4_ib for ConnectX-3); it is in linux-modules-extra or the vendor's "
         "package of some distributions"});
  }
}

void check_user_space(const Scene& scene, Findings& findings) {
  if (scene.adapters.empty()) return;
  const auto devices = scene.files.names("dev/infiniband");
  bool verbs = false;
  std::vector<std::string> closed;
  for (const std::string& name : devices) {
    if (!name.starts_with("uverbs")) continue;
    verbs = true;
    if (!scene.files.usable("dev/infiniband/" + name)) closed.push_back("/dev/infiniband/" + name);
  }
  if (!closed.empty()) {
    findings.push_back(
        {"uverbs", Severity::fault,
         fmt::format("this user may not read and write {}", fmt::join(closed, ", ")),
         "programs reach adapters through these files",
         "chmod 666 /dev/infiniband/uverbs*; for good: a rule of udev, which rdma-core brings"});
  }
  if (!verbs) {
    const bool module = scene.files.has("sys/class/infiniband_verbs/abi_version");
    findings.push_back(
        {"uverbs", Severity::fault,
         fmt::format("{} RDMA adapters, and no /dev/infiniband/uverbs*", scene.adapters.size()),
         "programs reach adapters through these files",
         module
             ? "docker run --device=/dev/infiniband (with --ulimit memlock=-1), or the RDMA device "
               "plugin of Kubernetes"
             : "modprobe ib_uverbs"});
  }
  if (!has_library(scene.files, "libibverbs.so.1")) {
    findings.push_back({"libibverbs", Severity::fault, "libibverbs.so.1 is not installed",
                        "without it Chorus takes TCP",
                        "apt-get install libibverbs1 ibverbs-providers; dnf install libibverbs"});
    return;
  }
  std::vector<std::string> missing;
  for (const Adapter& adapter : scene.adapters) {
    const std::string provider = provider_of(scene.files, adapter);
    const bool there =
        provider.empty() || scene.files.has(fmt::format("etc/libibverbs.d/{}.driver", provider));
    if (!there && std::count(missing.begin(), missing.end(), provider) == 0) {
      missing.push_back(provider);
    }
  }
  if (missing.empty()) return;
  findings.push_back({"provider", Severity::fault,
                      fmt::format("libibverbs has no provider for {}", fmt::join(missing, ", ")),
                      "it lists only adapters that one of its providers serves",
                      "apt-get install ibverbs-providers; dnf install libibverbs"});
}

/// Linux 5.12 and later let adapters register dma-bufs.
bool takes_dmabufs(const std::string& release) {
  const auto major = number(release);
  const auto dot = release.find('.');
  if (!major || dot == std::string::npos) return true;  // unknown
  const auto minor = number(std::string_view(release).substr(dot + 1));
  return *major > 5 || (*major == 5 && minor.value_or(12) >= 12);
}

/// GPU memory straight to an adapter wants the kernel to know both.
void check_gpu_direct(const Scene& scene, Findings& findings) {
  const bool gpus = std::any_of(scene.pci.begin(), scene.pci.end(),
                                [](const Pci& pci) { return pci.is_gpu() && !pci.driver.empty(); });
  if (!gpus || scene.adapters.empty()) return;
  const bool peermem =
      scene.files.has("sys/module/nvidia_peermem") || scene.files.has("sys/module/nv_peer_mem");
  const bool open =
      scene.files.text("proc/driver/nvidia/version").find("Open Kernel") != std::string::npos;
  const std::string release = scene.files.line("proc/sys/kernel/osrelease");
  const std::string effect =
      "adapters cannot reach GPU memory: all data between hosts goes through the host's";
  if (!open) {
    findings.push_back(
        {"peer-memory", peermem ? Severity::note : Severity::warning,
         fmt::format("the driver's kernel modules are not the open ones, which alone hand out "
                     "dma-bufs{}",
                     peermem ? " (nvidia_peermem is there: NCCL uses it, Chorus does not)"
                             : ", and there is no nvidia_peermem"),
         effect,
         "install the driver with its open kernel modules (for NCCL modprobe nvidia_peermem is "
         "enough)"});
  } else if (!takes_dmabufs(release)) {
    findings.push_back({"peer-memory", Severity::warning,
                        fmt::format("Linux {} does not let adapters register dma-bufs", release),
                        effect, "use Linux 5.12 or later"});
  }
}

struct Port {
  std::string name;  ///< "mlx5_0 port 1"
  std::string base;  ///< below the root
  bool ethernet = false;
  std::string interface;  ///< of Ethernet
};

std::vector<Port> ports(const Scene& scene) {
  std::vector<Port> found;
  for (const Adapter& adapter : scene.adapters) {
    const std::string list = "sys/class/infiniband/" + adapter.name + "/ports";
    for (const std::string& number : scene.files.names(list)) {
      Port port{fmt::format("{} port {}", adapter.name, number),
                fmt::format("{}/{}/", list, number), false, ""};
      port.ethernet = scene.files.line(port.base + "link_layer") == "Ethernet";
      for (int i = 0; port.ethernet && port.interface.empty() && i < 16; ++i) {
        port.interface = scene.files.line(fmt::format("{}gid_attrs/ndevs/{}", port.base, i));
      }
      if (port.ethernet && port.interface.empty()) {
        port.interface = scene.files.line("sys/class/infiniband/" + adapter.name + "/parent");
      }
      if (port.interface.find('/') != std::string::npos) port.interface.clear();
      found.push_back(std::move(port));
    }
  }
  return found;
}

/// "DOWN" of the kernel's "1: DOWN".
std::string without_number(const std::string& line) {
  const auto colon = line.find(": ");
  return colon == std::string::npos ? line : line.substr(colon + 2);
}

/// True if the port can carry data.
bool check_state(const Scene& scene, const Port& port, Findings& findings) {
  const std::string state = without_number(scene.files.line(port.base + "state"));
  if (state.empty() || state.find("ACTIVE") != std::string::npos) return true;
  const bool waits = state.find("INIT") != std::string::npos;
  const std::string physical = without_number(scene.files.line(port.base + "phys_state"));
  std::string remedy = fmt::format(
      "look at the cable and the switch's port; {}",
      port.interface.empty() ? "ibstat; ibportstate" : "ip link set dev " + port.interface + " up");
  if (waits)
    remedy = "start a subnet manager (opensm) in the fabric: sminfo shows whether there is one";
  findings.push_back(
      {"rdma-port", Severity::warning,
       fmt::format("{} is {}{}", port.name, state, physical.empty() ? "" : " (" + physical + ")"),
       waits ? "the link is up, but the port has no address" : "nothing goes over it",
       std::move(remedy)});
  return false;
}

void check_gids(const Scene& scene, const Port& port, Findings& findings) {
  constexpr std::string_view kNothing = "0000:0000:0000:0000:0000:0000:0000:0000";
  bool any = false;
  bool second = false;
  bool address = false;
  for (int i = 0; i < 256; ++i) {
    const std::string gid = scene.files.line(fmt::format("{}gids/{}", port.base, i));
    if (gid.empty() || gid == kNothing) continue;
    any = true;
    const bool v2 =
        scene.files.line(fmt::format("{}gid_attrs/types/{}", port.base, i)) == "RoCE v2";
    second = second || v2;
    address = address || (v2 && !gid.starts_with("fe80"));
  }
  const std::string why =
      "a RoCE port is addressed by its GIDs, which follow its interface's IP addresses";
  const std::string to = port.interface.empty() ? "NAME" : port.interface;
  if (!any) {
    findings.push_back(
        {"gid", Severity::fault, fmt::format("{} has no GID", port.name), why,
         fmt::format("ip link set dev {0} up; ip addr add ADDRESS/BITS dev {0}", to)});
  } else if (!second) {
    findings.push_back(
        {"gid", Severity::warning, fmt::format("{} has RoCE v1 GIDs only", port.name),
         "RoCE v1 passes no router, and many networks drop it",
         fmt::format("cma_roce_mode -d {} -p 1 -m 2, newer firmware, or an IP address",
                     port.name.substr(0, port.name.find(' ')))});
  } else if (!address) {
    findings.push_back({"gid", Severity::note,
                        fmt::format("{} has link-local GIDs only", port.name),
                        "they reach hosts of the same Ethernet segment",
                        fmt::format("ip addr add ADDRESS/BITS dev {}", to)});
  }
}

void check_packets(const Scene& scene, const std::vector<Port>& all, Findings& findings) {
  std::map<std::uint64_t, std::vector<std::string>> by_mtu;
  for (const Port& port : all) {
    const auto mtu = number(scene.files.line("sys/class/net/" + port.interface + "/mtu"));
    if (port.ethernet && !port.interface.empty() && mtu) by_mtu[*mtu].push_back(port.interface);
  }
  if (by_mtu.empty()) return;
  constexpr std::uint64_t kWhole = 4200;  // 4096 bytes and headers
  if (by_mtu.size() > 1) {
    findings.push_back(
        {"roce-mtu", Severity::warning,
         fmt::format("RoCE ports disagree: MTU {} on {}, {} on {}", by_mtu.begin()->first,
                     fmt::join(by_mtu.begin()->second, " and "), by_mtu.rbegin()->first,
                     fmt::join(by_mtu.rbegin()->second, " and ")),
         "a connection uses the smaller MTU of its two ends; larger packets vanish",
         "ip link set dev NAME mtu 9000 on all of them, here and elsewhere"});
  } else if (by_mtu.begin()->first < kWhole) {
    findings.push_back({"roce-mtu", Severity::note,
                        fmt::format("RoCE ports have an MTU of {}", by_mtu.begin()->first),
                        "RDMA packets then hold 1024 bytes at most, a quarter of what they can",
                        "ip link set dev NAME mtu 9000, on all hosts and switches"});
  }
}

}  // namespace

void check_rdma(const Scene& scene, Findings& findings) {
  check_drivers(scene, findings);
  check_user_space(scene, findings);
  check_gpu_direct(scene, findings);
}

void check_rdma_ports(const Scene& scene, Findings& findings) {
  const std::vector<Port> all = ports(scene);
  std::vector<Port> active;
  for (const Port& port : all) {
    if (!check_state(scene, port, findings)) continue;
    if (port.ethernet) check_gids(scene, port, findings);
    const std::string rate = scene.files.line(port.base + "rate");
    if (rate.find("(1X") != std::string::npos &&
        scene.files.has("sys/class/infiniband/" + port.name.substr(0, port.name.find(' ')) +
                        "/device")) {
      findings.push_back({"rdma-width", Severity::warning,
                          fmt::format("{} runs at {}", port.name, rate),
                          "one lane of four: a quarter of the cable's rate",
                          "reseat or replace the cable; mlxlink -d DEVICE shows its lanes"});
    }
    active.push_back(port);
  }
  if (!all.empty() && active.empty()) {
    findings.push_back({"rdma", Severity::fault, "no RDMA port is active",
                        "adapters are there, and all data would go through TCP",
                        "see the ports above"});
  }
  check_packets(scene, active, findings);
}

}  // namespace chorus::doctor
