// NCCL's and RCCL's topology XML (NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE). Partial files are legal:
// NCCL fills them up by detection on the machine, we by the defaults of rates.hpp, stated.
#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <map>
#include <set>

#include "chorus/error.hpp"
#include "topology/discover/box.hpp"
#include "topology/discover/rates.hpp"
#include "topology/import/formats.hpp"
#include "topology/import/xml.hpp"

namespace chorus {
namespace {

constexpr unsigned kNvswitchClass = 0x068000;
constexpr unsigned kPowerBridgeClass = 0x068001;
constexpr std::string_view kInvisibleSwitch = "fffffff:ff:ff";

class NcclReader {
 public:
  explicit NcclReader(const XmlFile& file) : file_(file) {}

  Box read(std::string_view where) {
    const pugi::xml_node system = file_.root();
    const long version = file_.integer(system, "version", 1, 0, 1000000);
    if (version != 1 && version != 2) {
      file_.fail(system, fmt::format("topology version {}: versions 1 (NCCL) and 2 (RCCL) are "
                                     "known; write the file with an earlier library",
                                     version));
    }
    box_.name = system.attribute("name").empty() ? std::string(where)
                                                 : std::string(system.attribute("name").value());
    for (const pugi::xml_node child : system.children()) {
      if (is(child, "cpu")) {
        read_cpu(child);
      } else {
        unknown(child);
      }
    }
    if (box_.numa_nodes.empty()) {
      file_.fail(system, "<system> holds no <cpu>: is the file complete?");
    }
    resolve();
    return std::move(box_);
  }

 private:
  static bool is(pugi::xml_node node, std::string_view name) { return name == node.name(); }

  void unknown(pugi::xml_node node) {
    if (node.type() != pugi::node_element) return;
    file_.warn(node, fmt::format("<{}> within <{}> is unknown and left out", node.name(),
                                 node.parent().name()));
  }

  void read_cpu(pugi::xml_node cpu) {
    const std::string_view arch = cpu.attribute("arch").value();
    const std::string_view vendor = cpu.attribute("vendor").value();
    const auto family = static_cast<int>(file_.integer(cpu, "familyid", 0, 0, 1 << 20));
    const auto model = static_cast<int>(file_.integer(cpu, "modelid", 0, 0, 1 << 20));
    const long numa = file_.integer(cpu, "numaid", -1, -1, 1 << 20);
    if (!numa_ids_.insert(numa).second && numa >= 0 && cpu.attribute("host_hash").empty()) {
      file_.fail(cpu, fmt::format("numaid {} is given to two <cpu>: make them one", numa));
    }
    if (!cpu.attribute("host_hash").empty() && !warned_of_hosts_) {
      warned_of_hosts_ = true;
      file_.warn(cpu, "host_hash is left out: all <cpu> are taken as one host's");
    }
    if (!arch.empty() || !vendor.empty()) {
      box_.socket_gb_s = socket_gb_s(arch == "arm64" ? "ARM" : vendor, family, model,
                                     arch == "ppc64" ? "POWER" : "");
    }
    NumaNode node;
    node.detail = fmt::format("{}{}{}", arch, arch.empty() || vendor.empty() ? "" : " ", vendor);
    if (family > 0) node.detail += fmt::format(" family {} model {}", family, model);
    box_.numa_nodes.push_back(std::move(node));
    for (const pugi::xml_node child : cpu.children()) {
      if (is(child, "pci")) {
        PciDevice device = read_pci(child);
        box_.numa_nodes.back().devices.push_back(std::move(device));
      } else if (is(child, "nic")) {
        read_ports(child, false, box_.numa_nodes.back().ports);
      } else {
        unknown(child);
      }
    }
  }

  PciAddress address(pugi::xml_node node, const char* attribute) const {
    const std::string_view text = node.attribute(attribute).value();
    const auto parsed = PciAddress::parse(text);
    if (!parsed) {
      file_.fail(node, fmt::format("{}=\"{}\" of <{}> is no PCI address: write it like "
                                   "0000:3b:00.0",
                                   attribute, text, node.name()));
    }
    return *parsed;
  }

  PciDevice read_pci(pugi::xml_node pci) {
    PciDevice device;
    device.address = address(pci, "busid");
    if (!devices_.insert(device.address).second) {
      file_.fail(pci, fmt::format("busid {} is given to two <pci>: remove one of them",
                                  device.address.text()));
    }
    const auto pci_class = static_cast<unsigned>(file_.integer(pci, "class", 0, 0, 0xffffff));
    device.gb_s = pcie_rate(pci);
    device.kind = kind_of(pci, pci_class);
    if (device.kind == PciDevice::Kind::other && pci_class == 0) {
      file_.warn(pci, fmt::format("{} has no class, so it is left out: class=\"0x030200\" would "
                                  "make it a GPU, \"0x020700\" an adapter",
                                  device.address.text()));
    }
    if (device.kind == PciDevice::Kind::nic && !pci.child("nic")) {
      NetPort port;
      port.gb_s = device.gb_s;
      port.type = pci_class >> 8 == 0x0207 ? "infiniband" : "ethernet";
      if (port.gb_s > 0) port.detail = "rate unknown: taken as its PCIe link's";
      device.ports.push_back(std::move(port));
    }
    for (const pugi::xml_node child : pci.children()) {
      if (is(child, "pci")) {
        device.children.push_back(read_pci(child));
      } else if (is(child, "gpu")) {
        expect_alone(child);
        read_gpu(child, device);
      } else if (is(child, "nic")) {
        expect_alone(child);
        read_ports(child, pci_class >> 8 == 0x0207, device.ports);
      } else if (is(child, "pcilink")) {
        (void)address(child, "target");  // a shortcut between switches: their uplinks remain
      } else {
        unknown(child);
      }
    }
    return device;
  }

  /// A <pci> is a bridge, a GPU or an adapter: one of several would be left out, and the ranks or
  /// ports below it with it.
  void expect_alone(pugi::xml_node device) const {
    for (const pugi::xml_node other : device.parent().children()) {
      const bool same_kind = std::string_view(other.name()) == device.name();
      if (other == device || !(is(other, "pci") || is(other, "gpu") || is(other, "nic"))) continue;
      if (same_kind && is(device, "nic")) continue;  // the ports of one adapter
      file_.fail(device, fmt::format("<{}> beside <{}> within one <pci>, which is a bridge or one "
                                     "device: give each a <pci> of its own",
                                     device.name(), other.name()));
    }
  }

  static PciDevice::Kind kind_of(pugi::xml_node pci, unsigned pci_class) {
    if (pci.child("pci")) return PciDevice::Kind::bridge;
    if (pci.child("gpu")) return PciDevice::Kind::gpu;
    if (pci.child("nic")) return PciDevice::Kind::nic;
    switch (pci_class >> 16) {
      case 0x02:
        return PciDevice::Kind::nic;
      case 0x03:
      case 0x12:
        return PciDevice::Kind::gpu;
      default:
        return PciDevice::Kind::other;
    }
  }

  /// GB/s of link_speed="16 GT/s" or "32.0 GT/s PCIe" and link_width, as NCCL plans them: 12 for
  /// x16 of generation 3. 0 if either is missing, as in virtual machines.
  double pcie_rate(pugi::xml_node pci) const {
    const std::string speed = pci.attribute("link_speed").value();
    const long width = file_.integer(pci, "link_width", 0, 0, 32);
    if (speed.empty() || speed.starts_with("Unknown")) return 0;
    char* end = nullptr;
    const double gt_s = std::strtod(speed.c_str(), &end);
    if (end == speed.c_str() || !std::string_view(end).starts_with(" GT/s") || !(gt_s >= 1) ||
        gt_s > 1000) {
      file_.fail(
          pci, fmt::format("link_speed=\"{}\" is no PCIe speed: write it like \"16 GT/s\"", speed));
    }
    const double per_lane = gt_s < 8 ? 0.075 : 0.09375;  // eight bits take ten up to generation 2
    return gt_s * per_lane * static_cast<double>(width);
  }

  void read_gpu(pugi::xml_node gpu, PciDevice& device) {
    const long number = file_.integer(gpu, "dev", -1, -1, 1 << 20);
    const long rank = file_.integer(gpu, "rank", -1, -1, 1 << 20);
    device.order = static_cast<int>(rank >= 0 ? rank : number);
    const auto sm = static_cast<int>(file_.integer(gpu, "sm", 0, 0, 10000));
    std::string gcn = gpu.attribute("gcn").value();
    if (gcn.empty()) gcn = gpu.attribute("arch").value();
    if (sm > 0) device.detail = fmt::format("sm_{}", sm);
    if (!gcn.empty()) device.detail = gcn;
    for (const pugi::xml_node child : gpu.children()) {
      if (is(child, "nvlink")) {
        read_link(child, device.address, sm_rate(child, sm), "nvlink");
      } else if (is(child, "xgmi")) {
        read_link(child, device.address, xgmi_rate(gcn), "xgmi");
      } else if (is(child, "c2c")) {
        read_c2c(child, device.address);
      } else {
        unknown(child);
      }
    }
  }

  double sm_rate(pugi::xml_node link, int sm) const {
    const double rate = nvlink_gb_s(sm);
    if (rate > 0) return rate;
    file_.warn(link, fmt::format("NVLinks of sm=\"{}\" are taken as 25 GB/s each", sm));
    return 25;
  }

  static double xgmi_rate(const std::string& gcn) {
    if (gcn.find("94") != std::string::npos || gcn.find("95") != std::string::npos) return 64;
    if (gcn.find("906") != std::string::npos || gcn.find("908") != std::string::npos) return 46;
    return kXgmiGbS;
  }

  void read_link(pugi::xml_node node, const PciAddress& from, double each_gb_s, const char* type) {
    GpuLink link;
    link.from = from;
    link.type = type;
    link.gb_s = each_gb_s * static_cast<double>(file_.integer(node, "count", 1, 1, 1000));
    const auto target_class = static_cast<unsigned>(file_.integer(node, "tclass", 0, 0, 0xffffff));
    const std::string_view target = node.attribute("target").value();
    if (target_class == kNvswitchClass || target.starts_with(kInvisibleSwitch)) {
      link.end = GpuLink::End::gpu_switch;
    } else if (target_class == kPowerBridgeClass) {
      link.end = GpuLink::End::numa;
      link.numa = static_cast<int>(box_.numa_nodes.size()) - 1;
    } else {
      link.to = address(node, "target");
      if (link.to == from) {
        file_.warn(node, fmt::format("a link of {} to itself is left out", from.text()));
        return;
      }
    }
    links_.push_back({node, link});
  }

  void read_c2c(pugi::xml_node node, const PciAddress& from) {
    GpuLink link;
    link.from = from;
    link.end = GpuLink::End::numa;
    link.numa = static_cast<int>(box_.numa_nodes.size()) - 1;
    link.type = "c2c";
    link.gb_s = static_cast<double>(file_.integer(node, "bw", 0, 1, 100000000)) / 1000 *
                static_cast<double>(file_.integer(node, "count", 1, 1, 1000));
    if (link.gb_s > 0) links_.push_back({node, link});
  }

  void read_ports(pugi::xml_node nic, bool infiniband, std::vector<NetPort>& ports) {
    for (const pugi::xml_node net : nic.children()) {
      if (!is(net, "net")) {
        unknown(net);
        continue;
      }
      NetPort port;
      port.name = net.attribute("name").value();
      port.gb_s = static_cast<double>(file_.integer(net, "speed", 0, 0, 100000000)) / 8000;
      if (infiniband || port.name.starts_with("mlx") || port.name.starts_with("ib")) {
        port.type = "infiniband";
      }
      ports.push_back(std::move(port));
    }
  }

  /// Links may name GPUs that come later in the file, so they are judged at its end.
  void resolve() {
    std::set<PciAddress> gpus;
    for (const NumaNode& numa : box_.numa_nodes) {
      for (const PciDevice& device : numa.devices) collect_gpus(device, gpus);
    }
    std::map<std::pair<PciAddress, PciAddress>, double> between;
    for (const auto& [node, link] : links_) {
      if (link.end == GpuLink::End::gpu && gpus.count(link.to) == 0) {
        file_.warn(node, fmt::format("the link of {} to {} is left out: no GPU of the file has "
                                     "that address",
                                     link.from.text(), link.to.text()));
        continue;
      }
      if (link.end == GpuLink::End::gpu) between[{link.from, link.to}] += link.gb_s;
      box_.gpu_links.push_back(link);
    }
    for (const auto& [node, link] : links_) {
      if (link.end != GpuLink::End::gpu || gpus.count(link.to) == 0) continue;
      const auto back = between.find({link.to, link.from});
      const double there = between.at({link.from, link.to});
      if (back == between.end() || std::abs(back->second - there) > 1e-6) {
        file_.fail(node, fmt::format("{} lists links to {} that the other side does not list "
                                     "alike: make their counts equal",
                                     link.from.text(), link.to.text()));
      }
    }
  }

  static void collect_gpus(const PciDevice& device, std::set<PciAddress>& gpus) {
    if (device.kind == PciDevice::Kind::gpu) gpus.insert(device.address);
    for (const PciDevice& child : device.children) collect_gpus(child, gpus);
  }

  const XmlFile& file_;
  Box box_;
  std::set<long> numa_ids_;
  std::set<PciAddress> devices_;
  std::vector<std::pair<pugi::xml_node, GpuLink>> links_;
  bool warned_of_hosts_ = false;
};

}  // namespace

Topology topology_from_nccl_xml(std::string_view text, std::string_view where) {
  const XmlFile file(text, where);
  if (std::string_view(file.root().name()) != "system") {
    file.fail(file.root(),
              fmt::format("<{}> begins no NCCL topology: <system> does", file.root().name()));
  }
  return topology_of(NcclReader(file).read(where));
}

}  // namespace chorus
