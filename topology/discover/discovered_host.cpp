#include "topology/discover/discovered_host.hpp"

#include <fmt/format.h>

#include <iterator>
#include <vector>

#include "model/json/json.hpp"
#include "model/json/reader.hpp"
#include "model/json/topology.hpp"

namespace chorus {
namespace {

constexpr int kMachineVersion = 1;
constexpr int kLargestNumber = 1 << 20;

// [unit, core, cache, NUMA node, package]
std::pair<int, CpuPlace> unit_from(const json::Node& node) {
  if (node.size() != 5) node.fail("must be [unit, core, cache, NUMA node, package]");
  const auto number = [&](std::size_t i) {
    return node.item(i).is_null() ? -1 : node.item(i).integer(0, kLargestNumber);
  };
  return {node.item(0).integer(0, kLargestNumber),
          {.core = number(1), .cache = number(2), .numa = number(3), .package = number(4)}};
}

}  // namespace

CpuPlace place_of(const DiscoveredHost& host, std::span<const int> units) {
  CpuPlace place;
  for (std::size_t i = 0; i < units.size(); ++i) {
    const auto found = host.units.find(units[i]);
    if (found == host.units.end()) return {};
    place = i == 0 ? found->second : common(place, found->second);
  }
  return place;
}

int numa_of_interface(const DiscoveredHost& host, std::string_view interface) {
  const std::vector<Topology::Node>& nodes = host.topology.nodes;
  std::vector<int> numbers;  // of NUMA nodes, by node; -1 for all others
  int numas = 0;
  for (const Topology::Node& node : nodes) {
    numbers.push_back(node.kind == NodeKind::numa ? numas++ : -1);
  }
  for (const Topology::Node& node : nodes) {
    if (node.kind != NodeKind::nic || node.name != interface) continue;
    for (int above = node.parent; above >= 0;
         above = nodes[static_cast<std::size_t>(above)].parent) {
      if (numbers[static_cast<std::size_t>(above)] >= 0) {
        return numbers[static_cast<std::size_t>(above)];
      }
    }
  }
  return -1;
}

std::string to_json(const DiscoveredHost& host) {
  std::string text = fmt::format(
      "{{\n  \"format\": \"chorus-machine\",\n  \"version\": {},\n  \"machine\": {},\n"
      "  \"units\": [",
      kMachineVersion, json::quote(host.machine));
  const auto number = [](int n) { return n < 0 ? "null" : fmt::format("{}", n); };
  const char* before = "\n    ";
  for (const auto& [unit, place] : host.units) {
    text += fmt::format("{}[{}, {}, {}, {}, {}]", before, unit, number(place.core),
                        number(place.cache), number(place.numa), number(place.package));
    before = ",\n    ";
  }
  text += "],\n  \"gpus\": [";
  for (std::size_t i = 0; i < host.gpus.size(); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", json::quote(host.gpus[i]));
  }
  return text + "],\n  \"topology\": {\n" + topology_members(host.topology, 4) + "  }\n}\n";
}

DiscoveredHost discovered_host_from_json(std::string_view text, std::string_view where) {
  const json::Value value = json::parse(text, where);
  const json::Node root(value, where);
  json::expect_format(root, "chorus-machine", kMachineVersion);
  root.expect_members({"format", "version", "machine", "units", "gpus", "topology"});
  DiscoveredHost host;
  host.machine = root.member("machine").text();
  if (host.machine.empty()) root.member("machine").fail("must name the machine");
  const json::Node units = root.member("units");
  for (std::size_t i = 0; i < units.size(); ++i) {
    const auto [unit, place] = unit_from(units.item(i));
    if (!host.units.emplace(unit, place).second) units.item(i).fail("is listed twice");
  }
  host.topology =
      topology_from_members(root.member("topology"), fmt::format("{}: /topology", where));
  const json::Node gpus = root.member("gpus");
  for (std::size_t i = 0; i < gpus.size(); ++i) host.gpus.push_back(gpus.item(i).text());
  if (!host.gpus.empty() && std::ssize(host.gpus) != host.topology.world_size()) {
    gpus.fail("must be one for each rank of the topology, or none");
  }
  return host;
}

}  // namespace chorus
