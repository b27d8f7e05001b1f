// PMIx, the way in of Open MPI's mpirun and of srun; libpmix is opened at run time.
#pragma once

#include <string>

namespace chorus {

/// As publish_by_pmi(), over PMIx. Throws BootstrapError, also where this build knows no PMIx or
/// the machine has no libpmix.so.2.
std::string publish_by_pmix(const std::string& value, int timeout_ms);

/// How many ranks the job has, where no variable says it. Throws BootstrapError.
int job_size_by_pmix();

}  // namespace chorus
