#include "nccl/log.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <utility>

#include "base/host.hpp"
#include "base/text/log.hpp"
#include "chorus/nccl.h"
#include "runtime/control/net.hpp"

namespace chorus::nccl {
namespace {

constexpr std::array<std::pair<std::string_view, Subsystem>, 6> kSubsystems{{
    {"INIT", Subsystem::init},
    {"COLL", Subsystem::coll},
    {"P2P", Subsystem::p2p},
    {"BOOTSTRAP", Subsystem::bootstrap},
    {"ENV", Subsystem::env},
    {"REG", Subsystem::reg},
}};

std::atomic<Level> g_level{Level::none};
std::atomic<unsigned> g_subsystems{0};
std::atomic<int> g_fd{STDOUT_FILENO};
std::mutex g_mutex;  // of configuring
bool g_configured = false;
thread_local int t_device = 0;

std::string upper(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return result;
}

/// "host:pid:tid [device] NCCL "
std::string prefix() {
  static const std::string host = host_name();
  return fmt::format("{}:{}:{} [{}] NCCL ", host.substr(0, host.find('.')), ::getpid(),
                     ::syscall(SYS_gettid), t_device);
}

void write_line(const std::string& line) {
  // One write per line, so lines of several ranks do not mix. Nothing can be done if it fails.
  [[maybe_unused]] const auto written =
      ::write(g_fd.load(std::memory_order_relaxed), line.data(), line.size());
}

std::string expanded(const std::string& pattern) {
  std::string path;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char next = pattern[i] == '%' && i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    if (next == 'h') {
      path += host_name();
    } else if (next == 'p') {
      path += std::to_string(::getpid());
    } else {
      path += pattern[i];
      continue;
    }
    ++i;
  }
  return path;
}

/// What Chorus itself has to say, in NCCL's form.
void take_over(LogLevel level, std::string_view who, std::string_view message) {
  const bool warning = level == LogLevel::error || level == LogLevel::warn;
  if (!warning && !writes(Level::info, Subsystem::init)) return;
  if (warning && g_level.load() < Level::warn) return;
  write_line(fmt::format("{}{} {}{}{}\n", prefix(), warning ? "WARN" : "INFO", who,
                         who.empty() ? "" : " ", message));
}

}  // namespace

LogSettings LogSettings::parse(std::string_view debug, std::string_view list, std::string file) {
  LogSettings settings;
  const std::string level = upper(debug);
  if (level == "VERSION") settings.level = Level::version;
  if (level == "WARN") settings.level = Level::warn;
  if (level == "INFO") settings.level = Level::info;
  if (level == "TRACE" || level == "ABORT") settings.level = Level::trace;
  settings.file = std::move(file);
  std::string names = upper(list);
  if (names.empty()) return settings;
  const bool inverted = names.front() == '^';
  if (inverted) names.erase(0, 1);
  unsigned chosen = 0;
  for (std::size_t from = 0; from <= names.size();) {
    const std::size_t to = std::min(names.find(',', from), names.size());
    const std::string_view name = std::string_view(names).substr(from, to - from);
    for (const auto& [known, bit] : kSubsystems) {
      if (name == known || name == "ALL") chosen |= static_cast<unsigned>(bit);
    }
    from = to + 1;
  }
  settings.subsystems = inverted ? ~chosen : chosen;
  return settings;
}

void configure_log(const LogSettings& settings) {
  const std::lock_guard lock(g_mutex);
  if (std::exchange(g_configured, true)) return;
  if (!settings.file.empty()) {
    const int fd = ::open(expanded(settings.file).c_str(),
                          O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
    if (fd >= 0) g_fd = fd;
  }
  g_subsystems = settings.subsystems;
  g_level = settings.level;
  set_log_sink(settings.level == Level::none
                   ? std::function<void(LogLevel, std::string_view, std::string_view)>()
                   : take_over);
  if (settings.level >= Level::version) {
    write_line(fmt::format("NCCL version {}.{}.{}+chorus{}\n", NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH,
                           CHORUS_VERSION));
  }
}

void reset_log() {
  const std::lock_guard lock(g_mutex);
  g_configured = false;
}

bool writes(Level level, Subsystem subsystem) {
  return level <= g_level.load(std::memory_order_relaxed) &&
         (g_subsystems.load(std::memory_order_relaxed) & static_cast<unsigned>(subsystem)) != 0;
}

void set_log_device(int device) { t_device = device; }

void warn(std::string_view text) {
  if (g_level.load(std::memory_order_relaxed) < Level::warn) return;
  write_line(fmt::format("{}WARN {}\n", prefix(), text));
}

void info(Subsystem subsystem, std::string_view text) {
  if (writes(Level::info, subsystem)) write_line(fmt::format("{}INFO {}\n", prefix(), text));
}

}  // namespace chorus::nccl
