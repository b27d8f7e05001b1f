// Runs every wanted block of every library, fairly and whatever the libraries do.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "perf/benchmark.hpp"
#include "perf/cluster/fabric.hpp"
#include "perf/libraries.hpp"
#include "perf/report/report.hpp"

namespace chorus::perf {

class Allocation;

/// An emulated cluster to measure on, in place of a transport.
struct ClusterPlace {
  std::string topology;    ///< a name or a file of Chorus JSON
  std::vector<int> order;  ///< of ranks; empty: as in the topology
  CableOptions cables = {};
  bool described = true;  ///< Chorus is told the topology

  /// "pairs", "pairs 0,2,1,3": what the rows say in place of a transport.
  [[nodiscard]] std::string name() const;
};

/// What to measure.
struct Settings {
  std::vector<Kind> kinds = {Kind::all_reduce};
  std::vector<std::string> transports = {"shm"};
  std::vector<ClusterPlace> clusters;  ///< if any: these, with their ranks, and no transports
  std::vector<Library> libraries;
  int ranks = 2;
  std::vector<std::uint64_t> sizes;  ///< bytes, ascending
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  int rounds = 3;
  int max_iterations = 0;  ///< of one block; 0: by size
  int warmup = 0;          ///< 0: by size
  int budget_ms = 300;     ///< for the timed iterations of one block
  int window = 0;          ///< messages per iteration of a bandwidth measurement; 0: by size
  bool in_place = false;
  bool dirty = false;
  int offset_bytes = 0;   ///< of ordinary buffers, behind a page
  double timeout_s = 30;  ///< for one block, and for the start of a library
  bool restart = false;   ///< every round begins with a new start of each library
  /// On clusters: also what Chorus takes by faster cables, Row::faster_us.
  bool cores = false;
};

/// An earlier run to go on with, and where to save this one after every cluster.
struct Continued {
  Report before = {};
  std::function<void(const Report&)> save = [](const Report&) {};
};

/// begin, begin·factor, … up to and including `end`. Throws chorus::InputError unless
/// 0 < begin ≤ end and factor > 1.
[[nodiscard]] std::vector<std::uint64_t> sizes_between(std::uint64_t begin, std::uint64_t end,
                                                       double factor);

/// The sizes, in bytes, that `kind` really has when `wanted` are cut into whole blocks.
[[nodiscard]] std::vector<std::uint64_t> real_sizes(const Settings& settings, Kind kind, int ranks);

/// Told before every block.
struct Step {
  int done = 0;
  int total = 0;
  std::string what;  ///< "all_reduce shm 64 KiB openmpi, round 2"
};

/// Measures. Rounds go over the libraries in turn, size by size, beginning with another one each
/// time, so that a disturbance hits all of them; a library that fails or hangs costs its own row
/// only, is started again, and is given up after its third failure over one transport.
///
/// `job`: on the hosts of that job, in place of this machine, with its ranks; `settings.transports`
/// are then those between hosts, or "auto".
///
/// Clusters that have all their rows in `continued.before` are not measured again.
///
/// Throws chorus::InputError for settings that cannot be measured.
[[nodiscard]] Report measure_all(const Settings& settings,
                                 const std::function<void(const Step&)>& progress,
                                 Allocation* job = nullptr, const Continued& continued = {});

/// Why a record cannot be continued with `settings` by a program of `commit`; empty if it can.
[[nodiscard]] std::string why_not_continue(const Report& before, const Settings& settings,
                                           const std::string& commit);

}  // namespace chorus::perf
