#include "topology/import/import.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "chorus/error.hpp"
#include "model/json/json.hpp"
#include "topology/import/formats.hpp"
#include "topology/import/xml.hpp"

namespace chorus {
namespace {

Topology from_xml(std::string_view text, std::string_view where) {
  const XmlFile file(text, where);
  const std::string_view root = file.root().name();
  if (root == "system") return topology_from_nccl_xml(text, where);
  if (root == "topology") return topology_from_hwloc_xml(text, where);
  if (root == "graphs") {
    file.fail(file.root(),
              "this is a graph file of NCCL (NCCL_GRAPH_FILE): it says which rings and trees NCCL "
              "chose, not how the machine is wired; give its topology file (NCCL_TOPO_DUMP_FILE)");
  }
  if (root == "algo") {
    file.fail(file.root(), "this is a schedule in MSCCL XML, not a topology");
  }
  file.fail(file.root(), fmt::format("<{}> begins no known topology: <system> (NCCL) and "
                                     "<topology> (hwloc) do",
                                     root));
}

Topology from_text(std::string_view text, std::string_view where) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // byte order mark
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) {
    throw InputError(fmt::format("{}: empty: a topology was expected", where));
  }
  if (text[begin] == '{') return topology_from_json(text, where);
  if (text[begin] == '<') return from_xml(text, where);
  if (text.find("GPU0") != std::string_view::npos) return topology_from_nvidia_smi(text, where);
  throw InputError(
      fmt::format("{}:1: no known format: Chorus JSON, NCCL or hwloc XML and the output of "
                  "nvidia-smi topo -m are read",
                  where));
}

}  // namespace

Topology topology_from_text(std::string_view text, std::string_view where) {
  return sound(from_text(text, where), where);
}

std::string text_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  char buffer[1 << 16];
  while (file.read(buffer, sizeof buffer) || file.gcount() > 0) {
    text.append(buffer, static_cast<std::size_t>(file.gcount()));
    if (text.size() > kMostInputBytes) {
      throw InputError(
          fmt::format("{}: larger than {} MiB: no topology is", path, kMostInputBytes >> 20));
    }
  }
  if (!file.eof()) {
    throw InputError(fmt::format("{}: cannot be read: {}", path, std::strerror(errno)));
  }
  return text;
}

Topology topology_from_file(std::string_view path) {
  const std::string name(path);
  return topology_from_text(text_of_file(name), name);
}

}  // namespace chorus
