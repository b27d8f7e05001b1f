#include "base/files.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>

#include "chorus/error.hpp"

namespace chorus {

std::string read_text(std::FILE* file, std::string& why) {
  constexpr std::size_t kMostBytes = std::size_t{64} << 20;
  std::string text;
  std::array<char, 1 << 16> buffer;
  while (const std::size_t got = std::fread(buffer.data(), 1, buffer.size(), file)) {
    text.append(buffer.data(), got);
    if (text.size() > kMostBytes) {
      why = "larger than 64 MiB: is it the right file?";
      return {};
    }
  }
  if (std::ferror(file) != 0) why = std::strerror(errno);  // of a directory, too
  return text;
}

std::string read_file(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rbe"),
                                                             &std::fclose);
  std::string why = file ? "" : std::strerror(errno);
  std::string text = file ? read_text(file.get(), why) : "";
  if (!why.empty()) throw InputError(fmt::format("cannot read {}: {}", path, why));
  return text;
}

void require_writable(const std::string& path) {
  std::error_code error;
  const bool there = std::filesystem::exists(path, error);
  if (there && std::filesystem::is_directory(path, error)) {
    errno = EISDIR;
  } else {
    const std::filesystem::path parent = std::filesystem::path(path).parent_path();
    const std::string asked = there ? path : parent.empty() ? "." : parent.string();
    if (::access(asked.c_str(), there ? W_OK : W_OK | X_OK) == 0) return;
  }
  throw InputError(fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
}

}  // namespace chorus
