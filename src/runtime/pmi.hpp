// The wire protocol PMI-1 of MPICH's Hydra and Slurm: words over an inherited socket.
#pragma once

#include <string>

namespace chorus {

/// Collective over the job: returns on every rank what rank 0 gave as `value` (no spaces, at most
/// a few hundred bytes); the others' is ignored. The connection stays open until the process ends.
/// Throws BootstrapError, also when timeout_ms passed before all ranks had called.
std::string publish_by_pmi(int rank, const std::string& value, int timeout_ms);

}  // namespace chorus
