// chorus-perf cluster: an emulated cluster for other programs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "perf/cluster/fabric.hpp"

namespace chorus::perf {

/// What `chorus-perf cluster` was asked.
struct ClusterOptions {
  enum class Action : std::uint8_t { run, check, hold, show };
  enum class Launcher : std::uint8_t { ranks, openmpi, mpich };

  Action action = Action::check;
  Launcher launcher = Launcher::ranks;
  std::string topology;    ///< a name or a file of Chorus JSON
  std::vector<int> order;  ///< rank r at the place of rank order[r]; empty: as in the topology
  CableOptions cables;
  std::vector<std::string> program;  ///< of run
  std::string json;                  ///< of show: a file for the topology, or empty
};

/// The name of docs/topologies.md that is meant: random:SEED is random-lan:SEED here, for random
/// graphs cannot be emulated. Files keep their names.
[[nodiscard]] std::string cluster_name(const std::string& name);

/// The names that "random:1..30,rate=0.1" stands for, one per seed; any other stands for itself.
/// Throws InputError naming the column where the range is none, or of more than 1000 seeds.
[[nodiscard]] std::vector<std::string> cluster_names(const std::string& name);

/// The topology that a name or a file of Chorus JSON means, spanned(). Throws InputError.
[[nodiscard]] Topology cluster_topology(const std::string& name, const std::vector<int>& order);

/// The same as hosts, switches and cables: lan:4,cables=2 has its cables apart, which are one of
/// the rate of all in its topology. Throws InputError.
[[nodiscard]] Fabric cluster_fabric(const std::string& name, const std::vector<int>& order = {});

/// Exit code: that of the first rank that failed for run; 1 if a cable is more than 10 % off for
/// check.
[[nodiscard]] int cluster_command(const ClusterOptions& options);

}  // namespace chorus::perf
