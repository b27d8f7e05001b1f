// This build found no pmix.h.
#include "chorus/error.hpp"
#include "runtime/launch/pmix.hpp"

namespace chorus {
namespace {

[[noreturn]] void fail() {
  throw BootstrapError(
      "mpirun or srun offers PMIx but this build of Chorus has no support for it: build with "
      "libpmix-dev installed, or start with chorus run or torchrun's variables");
}

}  // namespace

std::string publish_by_pmix(const std::string&, int) { fail(); }
int job_size_by_pmix() { fail(); }

}  // namespace chorus
