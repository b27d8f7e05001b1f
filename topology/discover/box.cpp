#include "topology/discover/box.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <tuple>
#include <utility>

#include "topology/discover/builder.hpp"
#include "topology/discover/rates.hpp"

namespace chorus {
namespace {

/// Reads 1 to `most` hex digits from the front of `text`; false if there are none.
bool take_hex(std::string_view& text, std::size_t most, std::uint32_t& value) {
  const char* end = text.data() + std::min(most, text.size());
  const auto [stop, error] = std::from_chars(text.data(), end, value, 16);
  if (error != std::errc{}) return false;
  text.remove_prefix(static_cast<std::size_t>(stop - text.data()));
  return true;
}

bool take(std::string_view& text, char c) {
  if (!text.starts_with(c)) return false;
  text.remove_prefix(1);
  return true;
}

double slower(double a, double b) {
  if (a <= 0) return b;
  if (b <= 0) return a;
  return std::min(a, b);
}

/// Leaves the GPUs and NICs below `device`, and the bridges where their ways part.
std::vector<PciDevice> prune(PciDevice device) {
  if (device.kind == PciDevice::Kind::gpu || device.kind == PciDevice::Kind::nic) {
    return {std::move(device)};
  }
  std::vector<PciDevice> kept;
  for (PciDevice& child : device.children) {
    for (PciDevice& left : prune(std::move(child))) kept.push_back(std::move(left));
  }
  if (kept.size() > 1 && device.kind == PciDevice::Kind::bridge) {
    device.children = std::move(kept);
    return {std::move(device)};
  }
  for (PciDevice& only : kept) only.gb_s = slower(only.gb_s, device.gb_s);
  return kept;
}

class BoxBuilder {
 public:
  explicit BoxBuilder(Box box) : box_(std::move(box)), builder_(box_.name) {}

  Topology build() {
    host_ = builder_.node("host", NodeKind::host, -1, box_.detail);
    for (NumaNode& numa : box_.numa_nodes) {
      std::vector<PciDevice> kept;
      for (PciDevice& device : numa.devices) {
        for (PciDevice& left : prune(std::move(device))) kept.push_back(std::move(left));
      }
      numa.devices = std::move(kept);
    }
    number_gpus();
    for (std::size_t i = 0; i < box_.packages.size(); ++i) {
      packages_.push_back(
          builder_.node(fmt::format("cpu{}", i), NodeKind::package, host_, box_.packages[i]));
    }
    for (std::size_t i = 0; i < box_.numa_nodes.size(); ++i) add_numa(i);
    if (gpus_.empty()) {
      add_cores();
    } else {
      add_ranks();
      add_gpu_links();
    }
    return builder_.take();
  }

 private:
  /// Deals out the numbers of GPUs: the source's own where all have one, else by address.
  void number_gpus() {
    std::vector<std::pair<int, PciAddress>> found;
    for (const NumaNode& numa : box_.numa_nodes) {
      for (const PciDevice& device : numa.devices) collect(device, found);
    }
    const bool numbered =
        std::all_of(found.begin(), found.end(), [](const auto& gpu) { return gpu.first >= 0; });
    std::sort(found.begin(), found.end(),
              [&](const auto& a, const auto& b) { return numbered ? a < b : a.second < b.second; });
    for (const auto& gpu : found) {  // an address given twice is one GPU
      numbers_.emplace(gpu.second, static_cast<int>(numbers_.size()));
    }
    gpus_.assign(numbers_.size(), -1);
  }

  static void collect(const PciDevice& device, std::vector<std::pair<int, PciAddress>>& found) {
    if (device.kind == PciDevice::Kind::gpu) found.emplace_back(device.order, device.address);
    for (const PciDevice& child : device.children) collect(child, found);
  }

  void add_numa(std::size_t index) {
    const NumaNode& numa = box_.numa_nodes[index];
    const int parent = numa.package >= 0 ? packages_[numa.package] : host_;
    const int node =
        builder_.node(fmt::format("numa{}", index), NodeKind::numa, parent, numa.detail);
    for (const int other : numas_) {
      builder_.both_ways(other, node,
                         {box_.socket_gb_s, kSocketHopUs, "socket", Provenance::table});
    }
    numas_.push_back(node);
    for (const PciDevice& device : numa.devices) add_device(device, node);
    for (const NetPort& port : numa.ports) add_nic({port}, node, 0, "");
  }

  /// `hops` cables lie between the device and the node `above`.
  void add_device(const PciDevice& device, int above, int hops = 1) {
    const bool known = device.gb_s > 0;
    const Wire pcie{known ? device.gb_s : kPcieUnknownGbS, hops * kPcieHopUs, "pcie",
                    box_.provenance};
    std::string detail = device.address.text();
    for (const std::string& part :
         {device.detail, std::string(known ? "" : "PCIe speed unknown")}) {
      if (!part.empty()) detail += (detail.empty() ? "" : ", ") + part;
    }
    switch (device.kind) {
      case PciDevice::Kind::bridge: {
        if (device.parted) return add_parted(device, above, hops, pcie.gb_s);
        const int node =
            builder_.node(fmt::format("pcie{}", bridges_++), NodeKind::pcie_bridge, above, detail);
        builder_.both_ways(node, above, pcie);
        for (const PciDevice& child : device.children) add_device(child, node);
        return;
      }
      case PciDevice::Kind::gpu: {
        const int number = numbers_.at(device.address);
        if (gpus_[number] >= 0) return;  // the same address twice
        gpus_[number] = builder_.node(fmt::format("gpu{}", number), NodeKind::gpu, above, detail);
        builder_.both_ways(gpus_[number], above, pcie);
        return;
      }
      case PciDevice::Kind::nic:
        add_nic(device.ports, above, device.gb_s, detail, hops);
        return;
      case PciDevice::Kind::other:
        return;
    }
  }

  /// A bridge that leads to memory only is no node at which its devices meet, but a cable to it
  /// that they share.
  void add_parted(const PciDevice& bridge, int above, int hops, double gb_s) {
    const std::string name = fmt::format("pcie{}", bridges_++);
    const int before = static_cast<int>(builder_.peek().links.size());
    for (const PciDevice& child : bridge.children) add_device(child, above, hops + 1);
    std::vector<int> up;
    std::vector<int> down;
    for (int i = before; i < static_cast<int>(builder_.peek().links.size()); ++i) {
      if (builder_.peek().links[i].dst == above) up.push_back(i);
      if (builder_.peek().links[i].src == above) down.push_back(i);
    }
    if (up.empty()) return;
    builder_.group(name + " up", std::move(up), gb_s);
    builder_.group(name + " down", std::move(down), gb_s);
  }

  /// An adapter below `above`, reached at `bus_gb_s`, and the cables of its ports.
  void add_nic(std::vector<NetPort> ports, int above, double bus_gb_s, std::string detail,
               int hops = 1) {
    if (ports.empty()) ports.emplace_back();  // a source that says there is an adapter and no more
    double sum = 0;
    for (NetPort& port : ports) {
      if (!port.detail.empty()) detail += (detail.empty() ? "" : ", ") + port.detail;
      if (port.gb_s <= 0) {
        port.gb_s = kInterfaceUnknownGbS;
        if (port.connected)
          detail += std::string(detail.empty() ? "" : ", ") + "rate unknown: taken as 10 Gb/s";
      }
      sum += port.gb_s;
    }
    std::string name = ports.front().name;
    if (name.empty() || builder_.has_node(name)) name = fmt::format("nic{}", nics_);
    ++nics_;
    const int node = builder_.node(name, NodeKind::nic, above, std::move(detail));
    const bool is_virtual = ports.front().is_virtual;
    builder_.both_ways(
        above, node,
        {bus_gb_s > 0 ? bus_gb_s : sum, is_virtual ? 0 : kNicHopUs + (hops - 1) * kPcieHopUs,
         is_virtual ? "memory" : "pcie", box_.provenance});
    for (const NetPort& port : ports) {
      if (!port.connected) continue;
      if (network_ < 0) network_ = builder_.node("network", NodeKind::network_switch);
      const double path_us = port.type == "ethernet" ? kEthernetPathUs : kInfinibandPathUs;
      builder_.both_ways(node, network_,
                         {port.gb_s, path_us / 2 - kNicHopUs, port.type, box_.provenance});
    }
  }

  void add_cores() {
    std::vector<int> copies;
    int number = 0;
    for (std::size_t n = 0; n < numas_.size(); ++n) {
      const NumaNode& numa = box_.numa_nodes[n];
      for (int c = 0; c < numa.cores; ++c) {
        const std::string detail = static_cast<std::size_t>(c) < numa.core_details.size()
                                       ? numa.core_details[c]
                                       : std::string();
        const int core =
            builder_.node(fmt::format("core{}", number++), NodeKind::core, numas_[n], detail);
        builder_.rank(core);
        const auto [out, in] =
            builder_.both_ways(core, numas_[n], {kCoreGbS, kCoreHopUs, "shm", Provenance::table});
        copies.insert(copies.end(), {out, in});
      }
    }
    if (number > 0) builder_.group("copying", std::move(copies), kCoreGbS * number);
  }

  void add_ranks() {
    for (const int gpu : gpus_) builder_.rank(gpu);
  }

  void add_gpu_links() {
    // One link per pair of ends and type, however many cables the source lists between them.
    std::map<std::tuple<int, int, std::string>, double> sums;
    int gpu_switch = -1;
    for (const GpuLink& link : box_.gpu_links) {
      const auto from = numbers_.find(link.from);
      if (from == numbers_.end() || link.gb_s <= 0) continue;
      int to = -1;
      if (link.end == GpuLink::End::gpu_switch) {
        if (gpu_switch < 0) {
          gpu_switch = builder_.node(link.type == "nvlink" ? "nvswitch" : "gpu-switch",
                                     NodeKind::gpu_switch, host_, box_.gpu_switch_detail);
        }
        to = gpu_switch;
      } else if (link.end == GpuLink::End::numa) {
        to = numas_.at(link.numa);
      } else if (const auto peer = numbers_.find(link.to); peer != numbers_.end()) {
        to = gpus_[peer->second];
      }
      if (to < 0 || to == gpus_[from->second]) continue;
      sums[{gpus_[from->second], to, link.type}] += link.gb_s;
    }
    for (const auto& [ends, gb_s] : sums) {
      const auto& [from, to, type] = ends;
      const bool to_gpu = builder_.peek().nodes[to].kind == NodeKind::gpu;
      const Wire wire{gb_s, to_gpu ? kGpuLinkUs : kGpuLinkUs / 2, type, box_.provenance};
      builder_.one_way(from, to, wire);
      if (!to_gpu) builder_.one_way(to, from, wire);  // only GPUs list their cables
    }
  }

  Box box_;
  TopologyBuilder builder_;
  int host_ = 0;
  int network_ = -1;
  int bridges_ = 0;
  int nics_ = 0;
  std::vector<int> packages_;
  std::vector<int> numas_;
  std::map<PciAddress, int> numbers_;  // of the GPUs
  std::vector<int> gpus_;              // nodes by number
};

}  // namespace

std::optional<PciAddress> PciAddress::parse(std::string_view text) {
  PciAddress address;
  const bool with_domain = std::count(text.begin(), text.end(), ':') == 2;
  if (with_domain && !(take_hex(text, 8, address.domain) && take(text, ':'))) return std::nullopt;
  const bool good = take_hex(text, 4, address.bus) && take(text, ':') &&
                    take_hex(text, 4, address.device) && take(text, '.') &&
                    take_hex(text, 2, address.function) && text.empty();
  return good ? std::optional(address) : std::nullopt;
}

std::string PciAddress::text() const {
  if (domain == kNoDomain) return {};
  return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", domain, bus, device, function);
}

Topology topology_of(Box box) { return BoxBuilder(std::move(box)).build(); }

}  // namespace chorus
