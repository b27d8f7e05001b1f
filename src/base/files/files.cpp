#include "base/files/files.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>

#include "base/files/draft.hpp"
#include "chorus/error.hpp"

namespace chorus {
namespace {

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Close>;

/// `name`: what the file is called in a failure.
void write_over(const std::string& path, std::string_view text, const std::string& name) {
  const File file(std::fopen(path.c_str(), "wbe"));
  bool good = file != nullptr;
  good = good && std::fwrite(text.data(), 1, text.size(), file.get()) == text.size();
  good = good && std::fflush(file.get()) == 0;
  if (!good) throw InputError(fmt::format("{}: cannot be written: {}", name, std::strerror(errno)));
}

constexpr std::string_view kStandardOutput = "-";

}  // namespace

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
  const File file(std::fopen(path.c_str(), "rbe"));
  std::string why = file ? "" : std::strerror(errno);
  std::string text = file ? read_text(file.get(), why) : "";
  if (!why.empty()) throw InputError(fmt::format("cannot read {}: {}", path, why));
  return text;
}

void require_writable(const std::string& path) {
  if (path == kStandardOutput) return;
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

bool one_is_standard_output(std::initializer_list<std::string_view> paths) {
  const auto many = std::count(paths.begin(), paths.end(), kStandardOutput);
  if (many > 1) throw InputError("only one result can go to standard output (-)");
  return many == 1;
}

void write_output(const std::string& path, std::string_view text) {
  if (path != kStandardOutput) return write_file(path, text);
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    throw InputError(fmt::format("standard output cannot be written: {}", std::strerror(errno)));
  }
}

void write_file(const std::string& path, std::string_view text) {
  namespace fs = std::filesystem;
  std::error_code error;
  const bool there = fs::exists(path, error);
  // Behind a link it is the file that is replaced, not the link.
  const fs::path target = there ? fs::canonical(path, error) : fs::path(path);
  const fs::path draft = draft_of(target);
  const bool replaces =
      !error && (!there || fs::is_regular_file(target, error)) &&
      ::access(draft.parent_path().empty() ? "." : draft.parent_path().c_str(), W_OK | X_OK) == 0;
  // A device or a pipe, or in a folder that nothing can be added to.
  if (!replaces) return write_over(path, text, path);
  try {
    write_over(draft, text, path);
    if (there) fs::permissions(draft, fs::status(target).permissions());
    fs::rename(draft, target);
  } catch (const fs::filesystem_error& failed) {
    fs::remove(draft, error);
    throw InputError(fmt::format("{}: cannot be written: {}", path, failed.code().message()));
  } catch (const InputError&) {
    fs::remove(draft, error);
    throw;
  }
}

}  // namespace chorus
