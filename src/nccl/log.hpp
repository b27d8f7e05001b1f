// Lines as tools that read NCCL's log expect them: "host:pid:tid [device] NCCL INFO …".
#pragma once

#include <string>
#include <string_view>

namespace chorus::nccl {

enum class Level { none, version, warn, info, trace };

/// NCCL's names, of which NCCL_DEBUG_SUBSYS chooses.
enum class Subsystem : unsigned { init = 1, coll = 2, p2p = 4, bootstrap = 8, env = 16, reg = 32 };

/// Where lines go and which are written.
struct LogSettings {
  Level level = Level::none;
  unsigned subsystems = static_cast<unsigned>(Subsystem::init) |
                        static_cast<unsigned>(Subsystem::bootstrap) |
                        static_cast<unsigned>(Subsystem::env);
  std::string file = {};  ///< %h and %p stand for host and process; empty: standard output

  /// `debug`: "VERSION", "WARN", "INFO" or "TRACE", any case; `list`: "INIT,COLL", "^COLL" or
  /// "ALL". Anything else: nothing is written, the usual subsystems.
  static LogSettings parse(std::string_view debug, std::string_view list, std::string file);
};

/// Takes over the settings if none were taken over before; Chorus's own lines go the same way then
/// if the level says anything. Safe from any thread.
void configure_log(const LogSettings& settings);
/// The next configure_log() takes effect again.
void reset_log();

[[nodiscard]] bool writes(Level level, Subsystem subsystem);

/// The device in square brackets of this thread's lines.
void set_log_device(int device);

void warn(std::string_view text);
void info(Subsystem subsystem, std::string_view text);

}  // namespace chorus::nccl
