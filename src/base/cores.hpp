// The cores this process may run on.
#pragma once

#include <sched.h>

#include <vector>

namespace chorus {

/// Their numbers, ascending; {0} if the kernel does not say.
[[nodiscard]] inline std::vector<int> usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(static_cast<unsigned>(core), &set)) cores.push_back(core);
    }
  }
  if (cores.empty()) cores.push_back(0);
  return cores;
}

}  // namespace chorus
