#include "runtime/options/nccl_values.hpp"

#include <unistd.h>

#include <fstream>
#include <string_view>

#include "runtime/options/options_env.hpp"

namespace chorus {
namespace {

std::string trimmed(std::string_view text) {
  const auto from = text.find_first_not_of(" \t\r");
  if (from == std::string_view::npos) return {};
  return std::string(text.substr(from, text.find_last_not_of(" \t\r") - from + 1));
}

/// "NAME=value" lines; what is set earlier wins.
void read_file(const std::string& path, std::map<std::string, NcclValue>& values) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto equals = line.find('=');
    if (line.starts_with('#') || equals == std::string::npos) continue;
    const std::string name = trimmed(std::string_view(line).substr(0, equals));
    if (!name.starts_with("NCCL_")) continue;
    values.try_emplace(name, NcclValue{trimmed(std::string_view(line).substr(equals + 1)), path});
  }
}

}  // namespace

std::map<std::string, NcclValue> nccl_values() {
  std::map<std::string, NcclValue> values;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const auto equals = text.find('=');
    if (!text.starts_with("NCCL_") || equals == std::string_view::npos) continue;
    values.try_emplace(std::string(text.substr(0, equals)),
                       NcclValue{std::string(text.substr(equals + 1)), "environment"});
  }
  if (const auto file = values.find("NCCL_CONF_FILE"); file != values.end()) {
    read_file(std::string(file->second.value), values);
  } else if (const auto home = env("HOME")) {
    read_file(*home + "/.nccl.conf", values);
  }
  read_file("/etc/nccl.conf", values);
  return values;
}

}  // namespace chorus
