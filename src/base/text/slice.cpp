#include "base/text/slice.hpp"

#include <linux/sched.h>
#include <linux/sched/types.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace chorus {
namespace {

/// glibc 2.36 has no functions for these. Where one is forbidden slices stay as they are.
bool get(sched_attr& attributes) {
  return ::syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) == 0 &&
         (attributes.sched_policy == SCHED_NORMAL || attributes.sched_policy == SCHED_BATCH);
}

}  // namespace

void request_slice(int slice_us) {
  thread_local bool asked = false;
  if (asked || slice_us == 0) return;
  asked = true;
  sched_attr attributes{};
  const std::uint64_t slice_ns = std::uint64_t{1'000} * static_cast<std::uint64_t>(slice_us);
  if (!get(attributes) || attributes.sched_runtime <= slice_ns) return;  // older kernels answer 0
  attributes.sched_runtime = slice_ns;
  (void)::syscall(SYS_sched_setattr, 0, &attributes, 0);
}

int own_slice_us() {
  sched_attr attributes{};
  return get(attributes) ? static_cast<int>(attributes.sched_runtime / 1'000) : 0;
}

}  // namespace chorus
