// How programs are started on an emulated cluster, one process per rank of its topology.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "perf/cluster/cluster.hpp"

namespace chorus::perf {

using Variables = std::vector<std::pair<std::string, std::string>>;

/// One command per rank, with the variables of torchrun, which Chorus understands: RANK,
/// WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, and a secret.
[[nodiscard]] std::vector<Command> rank_commands(const Cluster& cluster,
                                                 const std::vector<std::string>& program,
                                                 const Variables& variables);

/// mpirun of Open MPI or mpiexec of MPICH on the host of rank 0, with the ranks on the hosts of the
/// topology in its order; `settings` goes between its own arguments and the program. `home`: the
/// prefix of an Open MPI 5 or MPICH 5 (perf/peers.sh) in place of the system's; empty: that.
[[nodiscard]] Command openmpi_command(const Cluster& cluster,
                                      const std::vector<std::string>& settings,
                                      const std::vector<std::string>& program,
                                      const Variables& variables, const std::string& home = {});
[[nodiscard]] Command mpich_command(const Cluster& cluster,
                                    const std::vector<std::string>& settings,
                                    const std::vector<std::string>& program,
                                    const Variables& variables, const std::string& home = {});

/// Path of chorus-perf-enter, which lies beside this program. Throws Error if it does not.
[[nodiscard]] std::string enter_program();

}  // namespace chorus::perf
