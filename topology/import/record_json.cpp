// Answers of NVML and the kernel as JSON (docs/formats.md).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "chorus/error.hpp"
#include "model/json/reader.hpp"
#include "topology/import/record.hpp"

namespace chorus {
namespace {

using json::Node;
using json::quote;

constexpr int kVersion = 1;
constexpr std::uint64_t kMostBytes = 1ULL << 50;
constexpr std::size_t kMostLost = 4096;
constexpr std::size_t kMostInterfaces = 4096;
constexpr std::size_t kMostInstances = 64;

// In the order of the enumerators.
constexpr std::array<std::string_view, 3> kEnds{"gpu", "switch", "memory"};
constexpr std::array<std::string_view, 7> kAncestors{
    "unknown", "board", "one_switch", "switches", "host_bridge", "node", "system"};
constexpr std::array<std::string_view, 8> kAccess{"unknown", "ok",       "chipset",       "gpu",
                                                  "bridge",  "disabled", "not_supported", "broken"};

template <class Enum, std::size_t count>
std::string_view name_in(const std::array<std::string_view, count>& names, Enum value) {
  return names.at(static_cast<std::size_t>(value));
}

template <class Enum, std::size_t count>
Enum one_of(const Node& node, const std::array<std::string_view, count>& names) {
  const auto found = std::find(names.begin(), names.end(), node.text());
  if (found == names.end()) {
    node.fail(fmt::format("\"{}\" is not one of {}", node.text(), fmt::join(names, ", ")));
  }
  return static_cast<Enum>(found - names.begin());
}

PciAddress address_in(const Node& node) {
  if (node.text().empty()) return {PciAddress::kNoDomain, 0, 0, 0};
  const auto address = PciAddress::parse(node.text());
  if (!address) node.fail(fmt::format("\"{}\" is no PCI address", node.text()));
  return *address;
}

std::string text_in(const Node& parent, std::string_view name) {
  return parent.has(name) ? parent.member(name).text() : std::string();
}

int number_in(const Node& parent, std::string_view name, int fallback, int low, int high) {
  return parent.has(name) ? parent.member(name).integer(low, high) : fallback;
}

Node array_in(const Node& parent, std::string_view name, std::size_t most) {
  Node array = parent.member(name);
  if (array.size() > most) array.fail(fmt::format("more than {} items", most));
  return array;
}

/// Reads each item of an array that may be left out.
template <class Read>
void each(const Node& parent, std::string_view name, std::size_t most, Read read) {
  if (!parent.has(name)) return;
  const Node array = array_in(parent, name, most);
  for (std::size_t i = 0; i < array.size(); ++i) read(array.item(i));
}

/// Texts, each on a line of its own.
std::string lines(const std::vector<std::string>& items, std::string_view indent) {
  if (items.empty()) return "[]";
  return fmt::format("[\n{0}  {1}\n{0}]", indent, fmt::join(items, fmt::format(",\n{}  ", indent)));
}

std::string text_of(const NvmlGpu& gpu) {
  std::vector<std::string> instances;
  for (const NvmlInstance& one : gpu.instances) {
    instances.push_back(fmt::format(R"({{"uuid": {}, "name": {}, "memory_bytes": {}}})",
                                    quote(one.uuid), quote(one.model), one.memory_bytes));
  }
  std::vector<std::string> links;
  for (const NvmlLink& link : gpu.links) {
    links.push_back(fmt::format(
        R"({{"link": {}, "end": "{}", "remote": "{}", "version": {}, "mb_s": {}}})", link.index,
        name_in(kEnds, link.end), link.remote.text(), link.version, link.mb_s));
  }
  std::vector<std::string> peers;
  for (const NvmlPeer& peer : gpu.peers) {
    peers.push_back(fmt::format(R"({{"ancestor": "{}", "read": "{}", "write": "{}"}})",
                                name_in(kAncestors, peer.ancestor), name_in(kAccess, peer.read),
                                name_in(kAccess, peer.write)));
  }
  std::string text =
      fmt::format(R"({{"pci": "{}", "name": {}, "uuid": {}, "memory_bytes": {}, "sm": {},)"
                  "\n     "
                  R"("pcie_generation": {}, "pcie_width": {}, "pcie_most_width": {})",
                  gpu.address.text(), quote(gpu.model), quote(gpu.uuid), gpu.memory_bytes, gpu.sm,
                  gpu.pcie_generation, gpu.pcie_width, gpu.pcie_most_width);
  if (gpu.numa >= 0) text += fmt::format(R"(, "numa": {})", gpu.numa);
  if (gpu.mig) text += fmt::format(",\n     \"mig\": {}", lines(instances, "     "));
  text += fmt::format(",\n     \"nvlinks\": {}", lines(links, "     "));
  text += fmt::format(",\n     \"peers\": {}}}", lines(peers, "     "));
  return text;
}

NvmlLink link_from(const Node& node) {
  node.expect_members({"link", "end", "remote"}, {"version", "mb_s"});
  NvmlLink link;
  link.index = static_cast<unsigned>(node.member("link").integer(0, kMostNvlinks - 1));
  link.end = one_of<GpuLink::End>(node.member("end"), kEnds);
  link.remote = address_in(node.member("remote"));
  link.version = static_cast<unsigned>(number_in(node, "version", 0, 0, 99));
  link.mb_s = static_cast<unsigned>(number_in(node, "mb_s", 0, 0, 999999));
  return link;
}

NvmlPeer peer_from(const Node& node) {
  node.expect_members({}, {"ancestor", "read", "write"});
  NvmlPeer peer;
  if (node.has("ancestor")) peer.ancestor = one_of<Ancestor>(node.member("ancestor"), kAncestors);
  if (node.has("read")) peer.read = one_of<PeerAccess>(node.member("read"), kAccess);
  if (node.has("write")) peer.write = one_of<PeerAccess>(node.member("write"), kAccess);
  return peer;
}

std::uint64_t memory_in(const Node& node) {
  return node.has("memory_bytes") ? node.member("memory_bytes").whole(0, kMostBytes) : 0;
}

NvmlGpu gpu_from(const Node& node) {
  node.expect_members({"pci"},
                      {"name", "uuid", "memory_bytes", "sm", "pcie_generation", "pcie_width",
                       "pcie_most_width", "numa", "mig", "nvlinks", "peers"});
  NvmlGpu gpu;
  gpu.address = address_in(node.member("pci"));
  gpu.model = text_in(node, "name");
  gpu.uuid = text_in(node, "uuid");
  gpu.memory_bytes = memory_in(node);
  gpu.sm = number_in(node, "sm", 0, 0, 999);
  gpu.pcie_generation = number_in(node, "pcie_generation", 0, 0, 9);
  gpu.pcie_width = number_in(node, "pcie_width", 0, 0, 64);
  gpu.pcie_most_width = number_in(node, "pcie_most_width", 0, 0, 64);
  gpu.numa = number_in(node, "numa", -1, 0, 1023);
  gpu.mig = node.has("mig");
  each(node, "mig", kMostInstances, [&](const Node& item) {
    item.expect_members({"uuid"}, {"name", "memory_bytes"});
    gpu.instances.push_back({item.member("uuid").text(), text_in(item, "name"), memory_in(item)});
  });
  each(node, "nvlinks", kMostNvlinks,
       [&](const Node& item) { gpu.links.push_back(link_from(item)); });
  each(node, "peers", kMostGpus, [&](const Node& item) { gpu.peers.push_back(peer_from(item)); });
  return gpu;
}

NetInterface interface_from(const Node& node) {
  node.expect_members({"name", "type"}, {"gb_s", "connected", "virtual", "pci", "detail"});
  NetInterface one;
  one.port.name = node.member("name").text();
  one.port.type = node.member("type").text();
  if (one.port.type.empty()) node.member("type").fail("an interface is of some type: ethernet, …");
  if (node.has("gb_s")) one.port.gb_s = node.member("gb_s").figure();
  if (one.port.gb_s != 0 && !(one.port.gb_s > 1e-9 && one.port.gb_s < 1e6)) {
    node.member("gb_s").fail("no interface has this rate: give GB/s, or 0 if it is unknown");
  }
  if (node.has("connected")) one.port.connected = node.member("connected").truth();
  if (node.has("virtual")) one.port.is_virtual = node.member("virtual").truth();
  if (node.has("pci")) one.pci = address_in(node.member("pci"));
  one.port.detail = text_in(node, "detail");
  return one;
}

}  // namespace

std::string to_json(const NvmlReport& report) {
  std::vector<std::string> gpus;
  for (const NvmlGpu& gpu : report.gpus) gpus.push_back(text_of(gpu));
  std::vector<std::string> lost;
  for (const std::string& sentence : report.lost) lost.push_back(quote(sentence));
  return fmt::format(
      "{{\n  \"format\": \"chorus-nvml\",\n  \"version\": {},\n  \"driver\": {},\n"
      "  \"gpus\": {},\n  \"lost\": {}\n}}\n",
      kVersion, quote(report.driver), lines(gpus, "  "), lines(lost, "  "));
}

std::string to_json(const HostRecord& host) {
  std::vector<std::string> interfaces;
  for (const NetInterface& one : host.interfaces) {
    std::string text =
        fmt::format(R"({{"name": {}, "type": {}, "gb_s": {}, "connected": {}, "virtual": {})",
                    quote(one.port.name), quote(one.port.type), one.port.gb_s, one.port.connected,
                    one.port.is_virtual);
    if (one.pci) text += fmt::format(R"(, "pci": "{}")", one.pci->text());
    if (!one.port.detail.empty()) text += fmt::format(R"(, "detail": {})", quote(one.port.detail));
    interfaces.push_back(text + "}");
  }
  return fmt::format(
      "{{\n  \"format\": \"chorus-host\",\n  \"version\": {},\n  \"name\": {},\n"
      "  \"interfaces\": {}\n}}\n",
      kVersion, quote(host.name), lines(interfaces, "  "));
}

NvmlReport nvml_from_json(std::string_view text, std::string_view where) {
  const json::Value value = json::parse(text, where);
  const Node root(value, where);
  json::expect_format(root, "chorus-nvml", kVersion);
  root.expect_members({"format", "version", "gpus"}, {"driver", "lost"});
  NvmlReport report;
  report.driver = text_in(root, "driver");
  each(root, "gpus", kMostGpus, [&](const Node& item) { report.gpus.push_back(gpu_from(item)); });
  each(root, "lost", kMostLost, [&](const Node& item) { report.lost.push_back(item.text()); });
  if (const std::string fault = contradiction(report); !fault.empty()) root.fail(fault);
  return report;
}

HostRecord host_from_json(std::string_view text, std::string_view where) {
  const json::Value value = json::parse(text, where);
  const Node root(value, where);
  json::expect_format(root, "chorus-host", kVersion);
  root.expect_members({"format", "version"}, {"name", "interfaces"});
  HostRecord host;
  host.name = text_in(root, "name");
  each(root, "interfaces", kMostInterfaces,
       [&](const Node& item) { host.interfaces.push_back(interface_from(item)); });
  return host;
}

}  // namespace chorus
