// The wire protocol PMI-1 of Hydra (MPICH, Intel MPI) and Slurm: words over an inherited socket, or
// to a port.
#pragma once

#include <string>

namespace chorus {

struct PmiPlace {
  int rank = 0;
  int world_size = 0;
};
/// As the launcher that listens at PMI_PORT says: it sets no variables. Throws BootstrapError.
PmiPlace place_by_pmi(int timeout_ms);

/// Collective over the job: returns on every rank what rank 0 gave as `value` (no spaces, at most
/// a few hundred bytes); the others' is ignored. The connection stays open until the process ends.
/// Throws BootstrapError, also when timeout_ms passed before all ranks had called.
std::string publish_by_pmi(int rank, const std::string& value, int timeout_ms);

}  // namespace chorus
