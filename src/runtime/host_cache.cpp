// What was measured of this machine, kept for the next job.
#include <fmt/format.h>

#include <fstream>
#include <mutex>
#include <optional>

#include "base/files.hpp"
#include "base/log.hpp"
#include "chorus/error.hpp"
#include "runtime/file.hpp"
#include "runtime/host_probe.hpp"
#include "runtime/probe_cache.hpp"

namespace chorus {
namespace {

std::string host_rates_file(const std::string& directory) { return directory + "/host.json"; }

/// What an earlier process kept of this machine.
std::optional<HostRates> load_host_rates(const std::string& directory) {
  const std::string path = host_rates_file(directory);
  if (directory.empty() || !std::ifstream(path)) return std::nullopt;
  try {
    HostRates rates = host_rates_from_json(read_file(path), path);
    if (rates.machine == machine_identity()) return rates;
    log(LogLevel::info, {}, fmt::format("{} is of another machine: measuring this one", path));
  } catch (const InputError& error) {
    log(LogLevel::info, {}, fmt::format("{}: measuring this machine again", error.what()));
  }
  return std::nullopt;
}

}  // namespace

HostRates find_host_rates(const std::string& wanted, const std::string& directory) {
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
  known = load_host_rates(directory);
  if (known) return *known;
  known = probe_host();
  if (known->is_measured()) {
    save_host_rates(directory, *known);
  } else {
    log(LogLevel::info, {}, "nothing of this machine could be measured: its rates are assumed");
  }
  return *known;
}

void save_host_rates(const std::string& directory, const HostRates& rates) {
  if (directory.empty()) return;
  keep_in_cache(host_rates_file(directory), to_json(rates));
}

}  // namespace chorus
