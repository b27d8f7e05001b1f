#include "base/files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

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

std::string printable(std::string_view text) {
  std::string result(text);
  std::ranges::replace_if(
      result, [](unsigned char c) { return (c < ' ' && c != '\n' && c != '\t') || c == 0x7f; },
      '?');
  return result;
}

void print(std::string_view all) {
  const std::string text = printable(all);
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    throw Error(fmt::format("standard output cannot be written: {}", std::strerror(errno)));
  }
}

}  // namespace chorus
