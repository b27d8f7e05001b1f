// Measures what moving bytes between the cores of this machine costs, once per machine.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "topology/discover/discovered_host.hpp"
#include "topology/discover/host_rates.hpp"

namespace chorus {

/// What makes figures those of this machine: boot id, kernel, processor, processors on line.
[[nodiscard]] std::string machine_identity();

/// Two cores of every distance that this process may run on: 100 ms of copies in all, which beside
/// other programs take up to a second or so. Threads of its own do it; the caller's cores stay as
/// they are. assumed_host_rates() where there is one core, and where other programs keep the cores
/// for so long that it is not through after two seconds. Each figure is the least of several, so
/// that what else runs here seldom changes it.
[[nodiscard]] HostRates probe_host();

/// A moment's look at HostRates::Pair::line_s of these two cores, under a millisecond; 0 if they
/// are not to be had.
[[nodiscard]] double look_at_line(const HostRates::Pair& cores);

/// Whether what was measured once no longer holds: a line takes less than half, or more than twice,
/// of what it did. Virtual processors move: today they are siblings, tomorrow cores far apart.
/// `look`: as look_at_line(); several are asked for before more is believed, since other work only
/// ever makes it more.
[[nodiscard]] bool is_stale(const HostRates& rates,
                            const std::function<double(const HostRates::Pair&)>& look);

/// What `wanted` (Options::host_probe) says: "off": assumed_host_rates(); "auto": what this process
/// knows, else what `directory` (Options::probe_cache) keeps of this machine and is not stale, else
/// probe_host(), which is kept there; anything else: the file of this name. Throws InputError for a
/// file that cannot be read.
[[nodiscard]] HostRates find_host_rates(
    const std::string& wanted, const std::string& directory,
    const std::function<double(const HostRates::Pair&)>& look = look_at_line);

/// Where the processing units, GPUs and adapters of this machine are: what this process knows, else
/// what `directory` keeps, if that knows `units`, else discover_host(), which is kept there. Knows
/// nothing if `wanted` is "off" or nothing can be discovered.
[[nodiscard]] DiscoveredHost find_discovered_host(const std::string& wanted,
                                                  const std::string& directory,
                                                  std::span<const int> units);

/// Keeps `rates` in `directory`, atomically; what goes wrong is logged at info.
void save_host_rates(const std::string& directory, const HostRates& rates);

}  // namespace chorus
