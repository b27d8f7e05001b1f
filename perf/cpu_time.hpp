// Processor time as the kernel counts it.
#pragma once

#include <sys/resource.h>

namespace chorus::perf {

[[nodiscard]] inline double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

/// In the program and in the kernel for it.
[[nodiscard]] inline double seconds_of(const rusage& usage) {
  return seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
}

}  // namespace chorus::perf
