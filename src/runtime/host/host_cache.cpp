// What was measured of this machine, kept for the next job.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <mutex>
#include <optional>

#include "base/files/files.hpp"
#include "base/text/log.hpp"
#include "chorus/error.hpp"
#include "runtime/host/host_probe.hpp"
#include "runtime/host/option_file.hpp"
#include "runtime/host/probe_cache.hpp"

namespace chorus {
namespace {

std::string host_rates_file(const std::string& directory) { return directory + "/host.json"; }

std::string discovered_file(const std::string& directory) { return directory + "/machine.json"; }

/// What an earlier process kept of this machine in `path`, as `read` reads it.
template <typename Kept>
std::optional<Kept> load(const std::string& directory, const std::string& path,
                         Kept (*read)(std::string_view, std::string_view)) {
  if (directory.empty() || !std::ifstream(path)) return std::nullopt;
  try {
    Kept kept = read(read_file(path), path);
    if (kept.machine == machine_identity()) return kept;
    log(LogLevel::info, {}, fmt::format("{} is of another machine: looking at this one", path));
  } catch (const InputError& error) {
    log(LogLevel::info, {}, fmt::format("{}: looking at this machine again", error.what()));
  }
  return std::nullopt;
}

bool knows(const DiscoveredHost& host, std::span<const int> units) {
  return std::ranges::all_of(units, [&](int unit) { return host.units.contains(unit); });
}

}  // namespace

bool is_stale(const HostRates& rates, const std::function<double(const HostRates::Pair&)>& look) {
  constexpr int kLooks = 4;
  constexpr double kOff = 2;
  const HostRates::Pair& pair = rates.pairs.back();
  for (int i = 0; i < kLooks; ++i) {
    const double line_s = look(pair);
    if (line_s <= 0 || line_s < pair.line_s / kOff) return line_s > 0;
    if (line_s <= pair.line_s * kOff) return false;
  }
  return true;
}

HostRates find_host_rates(const std::string& wanted, const std::string& directory,
                          const std::function<double(const HostRates::Pair&)>& look) {
  if (wanted == "off") return assumed_host_rates();
  if (wanted != "auto") {
    const std::string text =
        read_option_file(wanted, "CHORUS_HOST_PROBE", "chorus probe --host -o FILE");
    return host_rates_from_json(text, wanted);
  }
  static std::mutex mutex;  // communicators of several threads: one measures
  static std::optional<HostRates> known;
  const std::scoped_lock lock(mutex);
  if (known) return *known;
  known = load<HostRates>(directory, host_rates_file(directory), host_rates_from_json);
  if (known && !known->streams()) {
    log(LogLevel::info, {}, "an earlier version measured less of this machine: measuring it again");
    known.reset();
  }
  if (known && !is_stale(*known, look)) return *known;
  if (known) {
    log(LogLevel::info, {},
        "a line between cores no longer takes what it did when this machine was measured: "
        "measuring it again");
  }
  known = probe_host();
  if (known->is_measured()) {
    save_host_rates(directory, *known);
  } else {
    log(LogLevel::info, {}, "nothing of this machine could be measured: its rates are assumed");
  }
  return *known;
}

DiscoveredHost find_discovered_host(const std::string& wanted, const std::string& directory,
                                    std::span<const int> units) {
  if (wanted == "off") return {};
  static std::mutex mutex;
  static std::optional<DiscoveredHost> known;
  const std::scoped_lock lock(mutex);
  if (known && knows(*known, units)) return *known;
  const std::string path = discovered_file(directory);
  known = load<DiscoveredHost>(directory, path, discovered_host_from_json);
  if (known && knows(*known, units)) return *known;
  try {
    known = discover_host(machine_identity());
    if (!directory.empty()) keep_in_cache(path, to_json(*known));
  } catch (const Error& error) {
    log(LogLevel::info, {},
        fmt::format("where the cores of this machine are is not known: {}", error.what()));
    known.emplace();
  }
  return *known;
}

void save_host_rates(const std::string& directory, const HostRates& rates) {
  if (directory.empty()) return;
  keep_in_cache(host_rates_file(directory), to_json(rates));
}

}  // namespace chorus
