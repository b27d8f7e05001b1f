// How the GPUs of a communicator's ranks are wired, and what schedules cost on them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "chorus/options.hpp"
#include "chorus/topology.hpp"
#include "runtime/selection/selection.hpp"

namespace chorus {

/// Where the GPUs of a communicator's ranks are.
struct GpuPlaces {
  std::vector<int> host;      ///< by rank; hosts are numbered by their first rank
  std::vector<bool> reaches;  ///< [a · ranks + b]: the two reach each other's memory
  /// Of each host as it was discovered (discover()), with one rank per GPU; no ranks where it was
  /// not.
  std::vector<Topology> discovered = {};
  /// By rank: which rank of its host's Topology its GPU is; -1: not known.
  std::vector<int> gpu = {};

  [[nodiscard]] int num_hosts() const;
  [[nodiscard]] bool all_reach() const;
};

/// What the first rank of a host tells all of its GPUs (the same cache as find_discovered_host());
/// empty if nothing is known.
[[nodiscard]] std::string gpu_facts(const Options& options);

/// Sets GpuPlaces::discovered and gpu. `uuids` (uuid_text()) and `said` (gpu_facts()) by rank.
/// Throws BootstrapError naming the rank that said something malformed.
void learn_gpus(GpuPlaces& places, std::span<const std::string> uuids,
                std::span<const std::string> said);

/// The GPUs' wiring: what was discovered of each host, its PCIe tree and links between GPUs, and
/// hosts joined as `communicator` (a topology of the same ranks) says. Where a host was not
/// discovered, or two ranks share a GPU, it is assumed: GPUs that all reach each other around one
/// switch, others behind their host. If `communicator` has the ranks on GPUs, somebody described
/// them: it is returned as it is.
[[nodiscard]] Topology gpu_topology(const GpuPlaces& places, const Topology& communicator);

/// AlgorithmInput::levels: hosts of equally many GPUs, ranks numbered host by host; else empty.
[[nodiscard]] std::vector<int> gpu_levels(const GpuPlaces& places);

/// Of schedules on GPUs. What needs more operands of a fold than kernels take cannot run. Where all
/// GPUs, as many as these at most, reach each other's memory (`all_reach`), kernels fold
/// straight from all inputs into all outputs: what has no such form is not considered.
[[nodiscard]] Pricing gpu_pricing(bool all_reach, const Options& options);

}  // namespace chorus
