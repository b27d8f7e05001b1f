// How much of the cores a control group leaves its processes.
#pragma once

#include <string>

namespace chorus {

/// Cores' worth of time that the control groups of this process allow all their processes together
/// (cgroup v2's cpu.max, v1's cpu.cfs_quota_us); 0: no limit, or none that can be read. A process
/// that may run on 64 cores for a tenth of the time is no faster than on six. `root` is put before
/// the kernel's paths, for tests.
[[nodiscard]] double cpu_quota(const std::string& root = {});

}  // namespace chorus
