// Topologies that programs name.
#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

#include "chorus/error.hpp"
#include "model/json.hpp"
#include "runtime/file.hpp"
#include "topology/sources.hpp"

namespace chorus {

std::string read_file(const std::string& path) {
  constexpr std::size_t kMostBytes = std::size_t{64} << 20;
  const auto refuse = [&](const char* why) {
    throw InputError(fmt::format("cannot read {}: {}", path, why));
  };
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rbe"),
                                                             &std::fclose);
  if (!file) refuse(std::strerror(errno));
  std::string text;
  std::array<char, 1 << 16> buffer{};
  while (const std::size_t got = std::fread(buffer.data(), 1, buffer.size(), file.get())) {
    text.append(buffer.data(), got);
    if (text.size() > kMostBytes) refuse("larger than 64 MiB: is it the right file?");
  }
  if (std::ferror(file.get()) != 0) refuse(std::strerror(errno));  // of a directory, too
  return text;
}

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
