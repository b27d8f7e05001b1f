// This build found no pmix.h.
#include "chorus/error.hpp"
#include "runtime/pmix.hpp"

namespace chorus {

std::string publish_by_pmix(const std::string&, int) {
  throw BootstrapError(
      "mpirun or srun offers PMIx but this build of Chorus has no support for it: build with "
      "libpmix-dev installed, or start with chorus run or torchrun's variables");
}

}  // namespace chorus
