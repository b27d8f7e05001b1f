// The libraries that can be measured here, and how each is started.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "perf/cluster/cluster.hpp"
#include "perf/report/report.hpp"
#include "perf/session.hpp"

namespace chorus::perf {

/// A library is known by its worker executable, chorus-perf-worker-NAME. Chorus with a plan counts
/// as one more.
struct Library {
  /// "chorus", "openmpi", "mpich", "openmpi5", "mpich5", "impi", "gloo", "nccl", or as --worker
  /// says.
  std::string name;
  std::string worker;     ///< path of the executable
  std::string plan = {};  ///< Chorus: the plan to run; empty: what it chooses itself
  /// Open MPI: further words for mpirun, before the program. Others: for the worker.
  std::vector<std::string> settings = {};
  /// An MPI of a folder of peers (perf/peers.sh): its prefix. Empty: the system's.
  std::string home = {};
};

/// The workers in `directory`, Chorus first; by default where this program lies.
[[nodiscard]] std::vector<Library> find_libraries(const std::string& directory = {});

/// Empty if `library` can be started over `transport`, else why not.
[[nodiscard]] std::string why_not(const Library& library, std::string_view transport);

/// How to start `ranks` ranks of `library` on this machine, with the settings that let it run best
/// (docs/benchmarks.md gives the reason for each). `directory` is for files of this job.
/// Workers other than those of chorus, openmpi and mpich are started one process per rank, with
/// CHORUS_PERF_RANK and CHORUS_PERF_WORLD_SIZE in their environment. On GPUs the worker of Chorus
/// is another executable, with "-gpu" behind its name.
[[nodiscard]] Launch launch_for(const Library& library, std::string_view transport, int ranks,
                                const std::string& directory);

/// Empty if `library` can be measured on an emulated cluster, else why not.
[[nodiscard]] std::string why_not_on_cluster(const Library& library);

/// The same on the hosts of an emulated cluster, one process per rank of its topology, over TCP.
/// `topology_file` is what Chorus is told of the wiring; empty: nothing.
[[nodiscard]] Launch launch_on(const Cluster& cluster, const Library& library,
                               const std::string& topology_file, const std::string& directory);

/// How a library is started in a job of another launcher, on the hosts of that job.
struct JobLaunch {
  bool by_mpirun = false;  ///< else one process per rank, by the process of the job there
  Command command;
};
/// The hosts of a job, for a launcher.
struct JobHosts {
  std::string list;  ///< "a:2,b:2", in the order of ranks
  int ranks = 0;
  bool one_host = false;
  bool oversubscribed = false;  ///< more ranks than cores somewhere
};
/// `transport` is that between hosts; ranks of one host share memory beside it. "auto" leaves the
/// choice to the library. An MPI is started by its own mpirun, from the host of rank 0.
[[nodiscard]] JobLaunch launch_in_job(const Library& library, std::string_view transport,
                                      const JobHosts& hosts);
/// Empty if it can be started so, else why not.
[[nodiscard]] std::string why_not_in_job(const Library& library, std::string_view transport,
                                         const JobHosts& hosts);
/// Of the peers that chorus-perf knows those that are not among `chosen`, and why.
[[nodiscard]] std::vector<Absent> absent_from(const std::vector<Library>& chosen);

/// Open MPI with algorithms that users choose for large messages on networks, as libraries of
/// their own: rings, and recursive halving or trees. Nothing if Open MPI is not among `libraries`.
[[nodiscard]] std::vector<Library> tuned_variants(const std::vector<Library>& libraries);

/// What a comparison on one host needs besides: Chorus with buffers of its own allocator, Open MPI
/// over UCX and with its hierarchical collectives, and for 2 ranks the floor (backend_floor.cpp).
[[nodiscard]] std::vector<Library> host_variants(const std::vector<Library>& libraries, int ranks);

/// Chorus in another form, or the floor: nothing that Chorus is compared with as a peer.
[[nodiscard]] bool is_yardstick(std::string_view library);

/// CPUs that this process may use.
[[nodiscard]] int usable_cpus();

}  // namespace chorus::perf
