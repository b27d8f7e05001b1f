// What was discovered of one machine, for every process on it.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chorus/topology.hpp"
#include "topology/discover/cpu_place.hpp"

namespace chorus {

struct DiscoveredHost {
  std::string machine;            ///< boot id, kernel and processor; empty: nothing is known
  std::map<int, CpuPlace> units;  ///< by the kernel's number of each processing unit
  Topology topology;              ///< as discover() has it
  /// Of the GPUs that its ranks are, as NVML writes them ("GPU-…"; empty: not told); none where
  /// ranks are cores.
  std::vector<std::string> gpus;

  bool operator==(const DiscoveredHost&) const = default;
};

/// Asks the sources that discover() asks; `machine` is the caller's. Takes some 20 to 80 ms, so
/// that whoever can keeps the result. Throws TopologyError.
[[nodiscard]] DiscoveredHost discover_host(std::string machine);

/// Of a process that may run on `units`. What the host does not list is nowhere.
[[nodiscard]] CpuPlace place_of(const DiscoveredHost& host, std::span<const int> units);

/// The number (CpuPlace::numa) of the NUMA node beside this interface; -1 if that is not known.
[[nodiscard]] int numa_of_interface(const DiscoveredHost& host, std::string_view interface);

/// Format: docs/probing.md. Same value, same text.
[[nodiscard]] std::string to_json(const DiscoveredHost& host);
/// Throws InputError beginning with `where` for anything that is not well formed.
[[nodiscard]] DiscoveredHost discovered_host_from_json(std::string_view text,
                                                       std::string_view where);

}  // namespace chorus
