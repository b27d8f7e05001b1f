#include "base/files.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

#include "base/draft.hpp"
#include "chorus/error.hpp"
#include "cli/cli.hpp"

namespace chorus {
namespace {

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Close>;

/// `name`: what the file is called in a failure.
void write_over(const std::string& path, std::string_view text, const std::string& name) {
  const File file(std::fopen(path.c_str(), "wb"));
  bool good = file != nullptr;
  good = good && std::fwrite(text.data(), 1, text.size(), file.get()) == text.size();
  good = good && std::fflush(file.get()) == 0;
  if (!good) throw InputError(fmt::format("{}: cannot be written: {}", name, std::strerror(errno)));
}

}  // namespace

std::string read_input(const std::string& path) {
  const bool standard = path == "-";
  const File owned(standard ? nullptr : std::fopen(path.c_str(), "rb"));
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
