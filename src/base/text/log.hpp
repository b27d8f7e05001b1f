// One logger, to stderr: error, warn, info, debug.
#pragma once

#include <functional>
#include <string_view>

namespace chorus {

enum class LogLevel { error, warn, info, debug };

/// Throws InputError for anything but "error", "warn", "info" and "debug".
LogLevel parse_log_level(std::string_view name);

/// For the whole process. Safe from any thread.
void set_log_level(LogLevel level);
[[nodiscard]] bool log_enabled(LogLevel level);

/// Where lines go in place of stderr: a function of level, `who` and message, called from any
/// thread, by one at a time. An empty one: to stderr again.
void set_log_sink(std::function<void(LogLevel, std::string_view, std::string_view)> sink);

/// Writes one line "chorus: warn: [rank 3/16 host] message" in one write. `who` may be empty.
void log(LogLevel level, std::string_view who, std::string_view message);

}  // namespace chorus
