// chorus-perf cluster: an emulated cluster for other programs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "perf/cluster/fabric.hpp"

namespace chorus::perf {

/// What `chorus-perf cluster` was asked.
struct ClusterOptions {
  enum class Action : std::uint8_t { run, check, hold };
  enum class Launcher : std::uint8_t { ranks, openmpi, mpich };

  Action action = Action::check;
  Launcher launcher = Launcher::ranks;
  std::string topology;    ///< a name or a file of Chorus JSON
  std::vector<int> order;  ///< rank r at the place of rank order[r]; empty: as in the topology
  CableOptions cables;
  std::vector<std::string> program;  ///< of run
};

/// The topology that a name or a file of Chorus JSON means. Throws InputError.
[[nodiscard]] Topology cluster_topology(const std::string& name, const std::vector<int>& order);

/// Of each cable in it, what the hosts' first, second, … cables have: {1} unless the name says that
/// there are several.
[[nodiscard]] std::vector<double> cluster_shares(const std::string& name);

/// Exit code: that of the first rank that failed for run; 1 if a cable is more than 10 % off for
/// check.
[[nodiscard]] int cluster_command(const ClusterOptions& options);

}  // namespace chorus::perf
