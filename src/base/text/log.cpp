#include "base/text/log.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <string>

#include "chorus/error.hpp"

namespace chorus {
namespace {

std::atomic<LogLevel> g_level{LogLevel::warn};
struct Sink {
  std::mutex mutex;
  std::function<void(LogLevel, std::string_view, std::string_view)> write;
};

/// Never destroyed: threads may still log while the process ends.
Sink& sink() {
  static Sink* const the_sink = new Sink;
  return *the_sink;
}

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

void set_log_sink(std::function<void(LogLevel, std::string_view, std::string_view)> write) {
  const std::lock_guard lock(sink().mutex);
  sink().write = std::move(write);
}

void log(LogLevel level, std::string_view who, std::string_view message) {
  if (!log_enabled(level)) return;
  {
    const std::lock_guard lock(sink().mutex);
    if (sink().write) return sink().write(level, who, message);
  }
  const std::string line = fmt::format("chorus: {}: {}{}{}\n", kNames[static_cast<int>(level)], who,
                                       who.empty() ? "" : " ", message);
  // One write per line, so lines of several ranks do not mix. Nothing can be done if it fails.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace chorus
