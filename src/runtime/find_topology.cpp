// Topologies that programs name.
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "chorus/error.hpp"
#include "model/json.hpp"
#include "runtime/file.hpp"
#include "topology/sources.hpp"

namespace chorus {

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) throw InputError(fmt::format("cannot read {}: {}", path, std::strerror(errno)));
  return text.str();
}

Topology find_topology(std::string_view source) {
  if (source.empty()) return discover();
  // A file that exists is meant, and so is a name that only a file can have.
  const std::string name(source);
  std::error_code error;
  const bool path_like = name.find('/') != std::string::npos || name.ends_with(".json");
  if (path_like || std::filesystem::is_regular_file(name, error)) {
    return topology_from_json(read_file(name), name);
  }
  return topology_from_name(name);
}

}  // namespace chorus
