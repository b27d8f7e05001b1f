#include "base/check.hpp"

#include <cstdio>
#include <cstdlib>

namespace chorus {

void check_failed(const char* condition, const char* why, const char* file, int line) {
  std::fprintf(stderr, "chorus: defect at %s:%d: %s (%s)\n", file, line, why, condition);
  std::abort();
}

}  // namespace chorus
