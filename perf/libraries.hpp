// The libraries that can be measured here, and how each is started.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "perf/session.hpp"

namespace chorus::perf {

/// A library is known by its worker executable, chorus-perf-worker-NAME. Chorus with a plan counts
/// as one more.
struct Library {
  std::string name;       ///< "chorus", "openmpi", "mpich", "gloo", or the name given with --worker
  std::string worker;     ///< path of the executable
  std::string plan = {};  ///< Chorus: the plan to run; empty: what it chooses itself
};

/// The workers in `directory`, Chorus first; by default where this program lies.
[[nodiscard]] std::vector<Library> find_libraries(const std::string& directory = {});

/// Transports that can be asked for: "shm" and "tcp".
[[nodiscard]] bool is_transport(std::string_view name);

/// Empty if `library` can be started over `transport`, else why not.
[[nodiscard]] std::string why_not(const Library& library, std::string_view transport);

/// How to start `ranks` ranks of `library` on this machine, with the settings that let it run best
/// (docs/benchmarks.md gives the reason for each). `directory` is for files of this job.
/// Workers other than those of chorus, openmpi and mpich are started one process per rank, with
/// CHORUS_PERF_RANK and CHORUS_PERF_WORLD_SIZE in their environment.
[[nodiscard]] Launch launch_for(const Library& library, std::string_view transport, int ranks,
                                const std::string& directory);

/// CPUs that this process may use.
[[nodiscard]] int usable_cpus();

}  // namespace chorus::perf
