#include "base/files/files.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "base/text/printable.hpp"
#include "chorus/error.hpp"
#include "cli/cli.hpp"

namespace chorus {
std::string read_input(const std::string& path) {
  const bool standard = path == "-";
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> owned(
      standard ? nullptr : std::fopen(path.c_str(), "rb"), &std::fclose);
  std::FILE* file = standard ? stdin : owned.get();
  const std::string name = standard ? "standard input" : path;
  if (file == nullptr) {
    throw InputError(fmt::format("{}: cannot be opened: {}", name, std::strerror(errno)));
  }
  std::string why;
  std::string text = read_text(file, why);
  if (!why.empty()) throw InputError(fmt::format("{}: cannot be read: {}", name, why));
  return text;
}

void print(std::string_view all) { write_output("-", printable(all)); }

}  // namespace chorus
