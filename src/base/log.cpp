#include "base/log.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "chorus/error.hpp"

namespace chorus {
namespace {

std::atomic<LogLevel> g_level{LogLevel::warn};
constexpr std::string_view kNames[] = {"error", "warn", "info", "debug"};

}  // namespace

LogLevel parse_log_level(std::string_view name) {
  for (int i = 0; i < 4; ++i) {
    if (kNames[i] == name) return static_cast<LogLevel>(i);
  }
  throw InputError(fmt::format("log level '{}': use error, warn, info or debug", name));
}

void set_log_level(LogLevel level) { g_level.store(level, std::memory_order_relaxed); }

bool log_enabled(LogLevel level) { return level <= g_level.load(std::memory_order_relaxed); }

void log(LogLevel level, std::string_view who, std::string_view message) {
  if (!log_enabled(level)) return;
  const std::string line = fmt::format("chorus: {}: {}{}{}\n", kNames[static_cast<int>(level)], who,
                                       who.empty() ? "" : " ", message);
  // One write per line, so lines of several ranks do not mix. Nothing can be done if it fails.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace chorus
