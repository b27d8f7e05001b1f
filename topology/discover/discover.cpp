#include "topology/discover/discover.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <functional>
#include <set>

#include "base/host.hpp"
#include "base/text/log.hpp"
#include "chorus/error.hpp"
#include "model/json/json.hpp"
#include "topology/discover/discovered_host.hpp"
#include "topology/discover/hwloc_live.hpp"
#include "topology/discover/sources.hpp"

namespace chorus {
namespace {

/// Calls `visit` with each device of the box until it returns true; false if it never did.
bool any_device(std::vector<PciDevice>& devices, const std::function<bool(PciDevice&)>& visit) {
  for (PciDevice& device : devices) {
    if (visit(device) || any_device(device.children, visit)) return true;
  }
  return false;
}

bool any_device(Box& box, const std::function<bool(PciDevice&)>& visit) {
  for (NumaNode& numa : box.numa_nodes) {
    if (any_device(numa.devices, visit)) return true;
  }
  return false;
}

/// Processing units that a synthetic string asks for, capped well above what is allowed.
long units_of(const std::string& description) {
  constexpr long kCap = 1 << 30;
  long product = 1;
  for (std::size_t i = 0; i < description.size(); ++i) {
    if (description[i] == '(') {  // attributes: sizes, not counts
      while (i < description.size() && description[i] != ')') ++i;
      continue;
    }
    if (std::isdigit(static_cast<unsigned char>(description[i])) == 0) continue;
    if (i > 0 && std::isalpha(static_cast<unsigned char>(description[i - 1])) != 0) continue;  // L2
    char* end = nullptr;  // in the bases that hwloc reads: 0xffff is a number, too
    const unsigned long number = std::strtoul(&description[i], &end, 0);
    i = static_cast<std::size_t>(end - description.data()) - 1;
    product = std::min(kCap, product * static_cast<long>(std::clamp(
                                           number, 1UL, static_cast<unsigned long>(kCap))));
  }
  return product;
}

}  // namespace

void add_interfaces(Box& box, const std::vector<NetInterface>& interfaces) {
  std::set<const PciDevice*> described;
  for (const NetInterface& interface : interfaces) {
    const bool placed = any_device(box, [&](PciDevice& device) {
      bool same = interface.pci && device.address == *interface.pci;
      for (const NetPort& port : device.ports) same = same || port.name == interface.port.name;
      if (!same || device.kind == PciDevice::Kind::gpu || !device.children.empty()) return false;
      device.kind = PciDevice::Kind::nic;
      if (described.insert(&device).second) device.ports.clear();  // hwloc knew their names only
      device.ports.push_back(interface.port);
      return true;
    });
    if (!placed && !box.numa_nodes.empty()) box.numa_nodes.front().ports.push_back(interface.port);
  }
}

namespace {

Box box_here(const NvmlReport& gpus) {
  bool is_here = false;
  Box box = box_of(hwloc_machine(host_name(), is_here));
  if (is_here) {
    add_interfaces(box, linux_interfaces("/sys"));
    for (const std::string& remark : add_nvml(box, gpus)) log(LogLevel::warn, "", remark);
  }
  return box;
}

}  // namespace

Topology discover() { return discover(nvml_report()); }

Topology discover(const NvmlReport& gpus) {
  return sound(topology_of(box_here(gpus)), "this machine");
}

DiscoveredHost host_of(Box box, std::string machine, const NvmlReport& gpus) {
  DiscoveredHost host{
      .machine = std::move(machine), .units = std::move(box.units), .topology = {}, .gpus = {}};
  host.topology = sound(topology_of(std::move(box)), host.machine);
  for (const int rank : host.topology.rank_nodes) {
    const Topology::Node& node = host.topology.nodes[static_cast<std::size_t>(rank)];
    if (node.kind != NodeKind::gpu) break;
    // Its detail begins with its address (topology_of()).
    const auto same = std::ranges::find_if(
        gpus.gpus, [&](const NvmlGpu& gpu) { return node.detail.starts_with(gpu.address.text()); });
    host.gpus.push_back(same == gpus.gpus.end() ? "" : same->uuid);
  }
  return host;
}

DiscoveredHost discover_host(std::string machine) {
  const NvmlReport gpus = nvml_report();
  return host_of(box_here(gpus), std::move(machine), gpus);
}

namespace {

Box synthetic_box(std::string_view description) {
  constexpr long kMostUnits = 1 << 16;
  const std::string text(description);
  if (text.size() > 512 || units_of(text) > kMostUnits) {
    throw InputError(
        fmt::format("the synthetic topology describes more than {} processing units", kMostUnits));
  }
  return box_of(hwloc_synthetic(text, "hwloc:" + text));
}

}  // namespace

Topology topology_from_synthetic(std::string_view description) {
  return topology_of(synthetic_box(description));
}

DiscoveredHost host_from_synthetic(std::string_view description) {
  return host_of(synthetic_box(description), fmt::format("hwloc:{}", description));
}

}  // namespace chorus
