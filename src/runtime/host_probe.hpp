// Measures what moving bytes between the cores of this machine costs, once per machine.
#pragma once

#include <string>

#include "topology/host_rates.hpp"

namespace chorus {

/// What makes figures those of this machine: boot id, kernel, processor, number of processors.
[[nodiscard]] std::string machine_identity();

/// Two cores of every distance that this process may run on, at most 100 ms in all. Threads of its
/// own do it; the caller's cores stay as they are. assumed_host_rates() where there is one core.
/// Each figure is the least of several, so that what else runs here seldom changes it.
[[nodiscard]] HostRates probe_host();

/// What `wanted` (Options::host_probe) says: "off": assumed_host_rates(); "auto": what this process
/// knows, else what `directory` (Options::probe_cache) keeps of this machine, else probe_host(),
/// which is kept there; anything else: the file of this name. Throws InputError for a file that
/// cannot be read.
[[nodiscard]] HostRates find_host_rates(const std::string& wanted, const std::string& directory);

/// Keeps `rates` in `directory`, atomically; what goes wrong is logged at info.
void save_host_rates(const std::string& directory, const HostRates& rates);

}  // namespace chorus
