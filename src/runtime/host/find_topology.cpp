// Topologies that programs name.
#include <fmt/format.h>

#include "base/files/files.hpp"
#include "chorus/error.hpp"
#include "model/json/json.hpp"
#include "runtime/host/option_file.hpp"
#include "topology/discover/sources.hpp"

namespace chorus {

std::string read_option_file(const std::string& path, std::string_view variable,
                             std::string_view command) {
  const auto refuse = [&](const std::string& why) {
    throw InputError(
        fmt::format("{}: {} names a file of Chorus JSON, which {} writes", why, variable, command));
  };
  std::string text;
  try {
    text = read_file(path);
  } catch (const InputError& error) {
    refuse(error.what());
  }
  if (text.starts_with('<')) refuse(path + " is XML");
  return text;
}

Topology find_topology(std::string_view source) {
  if (source.empty()) return discover();
  const std::string name(source);
  if (means_a_file(name)) return topology_from_json(read_file(name), name);
  return topology_from_name(name);
}

}  // namespace chorus
