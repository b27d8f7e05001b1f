// A machine on file: what its sources answered when it was discovered, so that discovery can be
// repeated elsewhere (docs/topologies.md).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "topology/discover/discovered_host.hpp"
#include "topology/discover/linux_net.hpp"
#include "topology/discover/nvml/nvml.hpp"

namespace chorus {

/// A host's name and its interfaces to networks.
struct HostRecord {
  std::string name;
  std::vector<NetInterface> interfaces;

  bool operator==(const HostRecord&) const = default;
};

/// Versioned JSON (docs/formats.md). Same value, same bytes.
[[nodiscard]] std::string to_json(const NvmlReport& report);
[[nodiscard]] std::string to_json(const HostRecord& host);

/// `where` begins every message. Throws InputError for what is malformed or contradicts itself.
[[nodiscard]] NvmlReport nvml_from_json(std::string_view text, std::string_view where);
[[nodiscard]] HostRecord host_from_json(std::string_view text, std::string_view where);

/// Files of a record's directory. Only the first must be there.
inline constexpr std::string_view kHwlocFile = "hwloc.xml";
inline constexpr std::string_view kHostFile = "host.json";
inline constexpr std::string_view kNvmlFile = "nvml.json";

/// Asks all other sources of this machine and writes what they answer to `directory`, which is made
/// if it does not exist. Throws InputError naming the file that cannot be written, TopologyError.
void record_machine(const std::string& directory, const NvmlReport& gpus);

/// What discover() would find on the machine that was recorded in `directory`; what is wrong with
/// the machine is logged as discover() does. Throws InputError.
[[nodiscard]] Topology topology_from_record(const std::string& directory);
/// Likewise what discover_host() would find; its machine is called `directory`.
[[nodiscard]] DiscoveredHost host_from_record(const std::string& directory);

}  // namespace chorus
