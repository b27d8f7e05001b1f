#include "base/files/draft.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <string>
#include <string_view>

namespace chorus {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::hours kOld{1};

/// The process that writes a draft of that name, or 0 if it is none of `file`.
pid_t writer(const std::string& draft, const std::string& file) {
  if (!draft.starts_with(file + ".")) return 0;
  const std::string_view number = std::string_view(draft).substr(file.size() + 1);
  pid_t pid = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), pid);
  return error == std::errc() && end == number.data() + number.size() && pid > 0 ? pid : 0;
}

}  // namespace

fs::path draft_of(const fs::path& file) { return fmt::format("{}.{}", file.string(), ::getpid()); }

void remove_stale_drafts(const fs::path& file) noexcept {
  try {
    std::error_code error;
    const auto now = fs::file_time_type::clock::now();
    for (fs::directory_iterator entry(file.parent_path(), error), end; !error && entry != end;
         entry.increment(error)) {
      const pid_t pid = writer(entry->path().filename().string(), file.filename().string());
      if (pid == 0 || ::kill(pid, 0) == 0 || errno != ESRCH) continue;
      const auto written = entry->last_write_time(error);
      if (!error && now - written > kOld) fs::remove(entry->path(), error);
      error.clear();
    }
  } catch (const std::exception&) {  // no memory: they stay
  }
}

}  // namespace chorus
