// hwloc's XML (lstopo --of xml). Not read through hwloc: its version 2.9 crashes on damaged files
// and refuses those of version 3.
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <set>

#include "chorus/error.hpp"
#include "topology/discover/hw_tree.hpp"
#include "topology/import/formats.hpp"
#include "topology/import/xml.hpp"

namespace chorus {
namespace {

using Type = HwObject::Type;

class HwlocXmlReader {
 public:
  explicit HwlocXmlReader(const XmlFile& file) : file_(file) {}

  HwMachine read(std::string_view where) {
    const pugi::xml_node topology = file_.root();
    if (std::string_view(topology.name()) != "topology") {
      file_.fail(topology,
                 fmt::format("<{}> begins no hwloc topology: <topology> does", topology.name()));
    }
    const std::string version = topology.attribute("version").value();
    version_ = version.empty() ? 1 : std::atoi(version.c_str());
    if (version_ < 1 || version_ > 3) {
      file_.fail(topology, fmt::format("hwloc XML of version {}: versions 1 to 3 are known; export "
                                       "it with lstopo --export-xml-flags v2",
                                       version));
    }
    HwMachine machine;
    machine.name = where;
    for (const pugi::xml_node child : topology.children()) {
      const std::string_view name = child.name();
      if (name == "object") {
        if (machine.root.id != 0) file_.fail(child, "a second machine: one per file is read");
        machine.root = read_object(child);
      } else if (name == "distances2" || name == "distances2hetero") {
        read_matrix(child, machine);
      }
    }
    if (machine.root.id == 0) file_.fail(topology, "<topology> holds no <object>");
    return machine;
  }

 private:
  HwObject read_object(pugi::xml_node node) {
    HwObject object;
    const long long fallback = -static_cast<long long>(ids_.size()) - 1;  // hwloc 1 gives no ids
    const long id = file_.integer(node, "gp_index", 0, 0, 1L << 60);
    object.id = id > 0 ? static_cast<std::uint64_t>(id) : static_cast<std::uint64_t>(fallback);
    if (!ids_.insert(object.id).second) {
      file_.fail(node, fmt::format("gp_index {} is given to two objects", id));
    }
    object.name = node.attribute("name").value();
    read_type(node, object);
    for (const pugi::xml_node child : node.children()) {
      const std::string_view name = child.name();
      if (name == "object") {
        object.children.push_back(read_object(child));
      } else if (name == "info") {
        object.info.emplace(child.attribute("name").value(), child.attribute("value").value());
      }
    }
    return object;
  }

  void read_type(pugi::xml_node node, HwObject& object) const {
    const std::string_view type = node.attribute("type").value();
    if (type.empty()) file_.fail(node, "an <object> without type");
    if (type == "Package" || type == "Socket") object.type = Type::package;
    if (type == "Core") object.type = Type::core;
    if (type == "PU") {
      object.type = Type::pu;
      object.unit = static_cast<int>(file_.integer(node, "os_index", -1, -1, 1 << 20));
    }
    if (type == "NUMANode") {
      object.type = Type::numa;
      object.bytes =
          static_cast<std::uint64_t>(file_.integer(node, "local_memory", 0, 0, 1L << 60));
    }
    if (type.ends_with("Cache") && type != "MemCache" &&
        node.attribute("cache_type").as_int() != 2) {  // instructions
      object.type = Type::cache;
      object.cache_level = static_cast<int>(file_.integer(node, "depth", 0, 0, 10));
      object.bytes = static_cast<std::uint64_t>(file_.integer(node, "cache_size", 0, 0, 1L << 50));
    }
    if (type == "Bridge") {
      object.type = Type::bridge;
      object.host_bridge = std::string_view(node.attribute("bridge_type").value()).starts_with('0');
      if (!object.host_bridge) read_pci(node, object);
    }
    if (type == "PCIDev") {
      object.type = Type::pci;
      read_pci(node, object);
    }
    if (type == "OSDev") {
      object.type = Type::os_device;
      object.os = os_of(file_.integer(node, "osdev_type", 0, 0, 1 << 20));
    }
  }

  /// pci_busid="0000:3b:00.0" pci_type="0302 [10de:20b0] [10de:1450] a1" pci_link_speed="31.5"
  void read_pci(pugi::xml_node node, HwObject& object) const {
    const std::string_view busid = node.attribute("pci_busid").value();
    const auto address = PciAddress::parse(busid);
    if (!address) file_.fail(node, fmt::format("pci_busid=\"{}\" is no PCI address", busid));
    object.address = *address;
    const std::string_view type = node.attribute("pci_type").value();
    if (!hex(type, 0, object.pci_class) || !hex(type, 6, object.pci_vendor)) {
      file_.fail(node, fmt::format("pci_type=\"{}\" does not begin like 0302 [10de:20b0]", type));
    }
    const double speed = node.attribute("pci_link_speed").as_double();
    object.link_gb_s = std::isfinite(speed) && speed > 0 ? speed : 0;
  }

  static bool hex(std::string_view text, std::size_t at, unsigned& value) {
    if (text.size() < at + 4) return false;
    const char* begin = text.data() + at;
    const auto [end, error] = std::from_chars(begin, begin + 4, value, 16);
    return error == std::errc{} && end == begin + 4;
  }

  /// hwloc 3 writes a set of bits where its predecessors numbered the types.
  [[nodiscard]] HwObject::Os os_of(long type) const {
    if (version_ >= 3) {
      if ((type & (1 << 3)) != 0) return HwObject::Os::compute;
      if ((type & (1 << 5)) != 0) return HwObject::Os::infiniband;
      return (type & (1 << 4)) != 0 ? HwObject::Os::network : HwObject::Os::other;
    }
    if (type == 5) return HwObject::Os::compute;
    if (type == 3) return HwObject::Os::infiniband;
    return type == 2 ? HwObject::Os::network : HwObject::Os::other;
  }

  void read_matrix(pugi::xml_node node, HwMachine& machine) const {
    const std::string_view name = node.attribute("name").value();
    if (name != "NVLinkBandwidth" && name != "XGMIBandwidth") return;
    HwMatrix matrix;
    matrix.type = name == "NVLinkBandwidth" ? "nvlink" : "xgmi";
    const bool mixed = std::string_view(node.name()) == "distances2hetero";
    for (const pugi::xml_node part : node.children()) {
      const bool is_index = std::string_view(part.name()) == "indexes";
      if (is_index || std::string_view(part.name()) == "u64values") {
        read_numbers(part, is_index && mixed, is_index ? matrix.objects : matrix.mb_s);
      }
    }
    const std::size_t size = matrix.objects.size();
    const long declared = file_.integer(node, "nbobjs", 0, 0, 4096);
    if (size != static_cast<std::size_t>(declared) || matrix.mb_s.size() != size * size) {
      file_.fail(node, fmt::format("{} of {} objects lists {} of them and {} values", name,
                                   declared, size, matrix.mb_s.size()));
    }
    if (!mixed && std::string_view(node.attribute("indexing").value()) != "gp") {
      file_.warn(node, fmt::format("{} is left out: its objects are given by os_index", name));
      return;
    }
    machine.matrices.push_back(std::move(matrix));
  }

  /// Numbers separated by blanks; with `typed`, each follows the type of an object: "OSDev:802".
  void read_numbers(pugi::xml_node node, bool typed, std::vector<std::uint64_t>& numbers) const {
    std::string_view text = node.child_value();
    while (true) {
      text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
      if (text.empty()) return;
      if (typed) {
        const std::size_t colon = text.find(':');
        text.remove_prefix(colon == std::string_view::npos ? 0 : colon + 1);
      }
      std::uint64_t number = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
      const auto length = static_cast<std::size_t>(end - text.data());
      if (error != std::errc{} || numbers.size() > std::size_t{1} << 24) {
        file_.fail(node, fmt::format("<{}> holds something else than numbers", node.name()));
      }
      numbers.push_back(number);
      text.remove_prefix(length);
    }
  }

  const XmlFile& file_;
  int version_ = 2;
  std::set<std::uint64_t> ids_;
};

}  // namespace

HwMachine machine_from_hwloc_xml(std::string_view text, std::string_view where) {
  const XmlFile file(text, where);
  return HwlocXmlReader(file).read(where);
}

Topology topology_from_hwloc_xml(std::string_view text, std::string_view where) {
  const HwMachine machine = machine_from_hwloc_xml(text, where);
  try {
    return topology_of(box_of(machine));
  } catch (const TopologyError& error) {
    throw InputError(fmt::format("{}:1: {}", where, error.what()));
  }
}

}  // namespace chorus
