#include "report/outputs.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "chorus/error.hpp"

namespace trainer {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw chorus::InputError(fmt::format("cannot write {}: {}", path, why));
}

fs::path folder_of(const fs::path& path) {
  const fs::path folder = path.parent_path();
  return folder.empty() ? "." : folder;
}

bool may_write(const fs::path& path) { return ::access(path.c_str(), W_OK) == 0; }

/// 0, or what went wrong.
int put(const fs::path& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (file) return 0;
  return errno == 0 ? EIO : errno;
}

}  // namespace

void check_output(const std::string& path) {
  std::error_code cause;
  const fs::path folder = folder_of(path);
  const fs::file_type kind = fs::status(folder, cause).type();
  if (kind == fs::file_type::none) refuse(path, cause.message());  // a way there may be closed
  if (kind != fs::file_type::directory) {
    refuse(path, fmt::format("there is no directory {}", folder.string()));
  }
  if (fs::is_directory(path, cause)) refuse(path, "it is a directory");
  const fs::path asked = fs::exists(path, cause) ? fs::path(path) : folder;
  if (!may_write(asked)) refuse(path, std::strerror(errno));
}

void check_outputs(std::initializer_list<std::string> paths) {
  std::set<fs::path> seen;
  for (const std::string& path : paths) {
    if (path.empty()) continue;
    check_output(path);
    std::error_code cause;
    if (fs::exists(path, cause) && !fs::is_regular_file(path, cause)) continue;
    if (seen.insert(fs::weakly_canonical(path, cause)).second) continue;
    refuse(path, "it is given for two outputs; take another file for one of them");
  }
}

void check_folder(const std::string& path) {
  std::error_code cause;
  fs::create_directories(path, cause);
  std::string why = cause ? cause.message() : "";
  if (why.empty() && !fs::is_directory(path, cause)) why = "it is no directory";
  if (why.empty() && !may_write(path)) why = std::strerror(errno);
  if (!why.empty()) {
    throw chorus::InputError(fmt::format("cannot keep checkpoints in {}: {}", path, why));
  }
}

void write_output(const std::string& path, const std::string& text) {
  std::error_code cause;
  fs::path target = path;
  if (fs::exists(target, cause)) target = fs::canonical(target, cause);
  const bool special = fs::exists(target, cause) && !fs::is_regular_file(target, cause);
  const bool replaces = !cause && !special && may_write(folder_of(target));
  if (!replaces) {
    if (const int why = put(path, text)) refuse(path, std::strerror(why));
    return;
  }
  fs::path beside = target;
  beside += fmt::format(".{}.unfinished", ::getpid());
  int why = put(beside, text);
  if (why == 0 && std::rename(beside.c_str(), target.c_str()) != 0) why = errno;
  if (why == 0) return;
  fs::remove(beside, cause);
  refuse(path, std::strerror(why));
}

std::string picture_of(const std::string& trace) {
  const fs::path picture = fs::path(trace).replace_extension(".svg");
  if (picture == trace) {
    throw chorus::InputError(
        fmt::format("--trace {} is the name of its picture; take another for the timeline, say {}",
                    trace, fs::path(trace).replace_extension(".json").string()));
  }
  return picture.string();
}

}  // namespace trainer
