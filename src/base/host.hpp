// What this machine is called.
#pragma once

#include <string>

namespace chorus {

/// gethostname(), "this machine" where that tells nothing. Names repeat, and containers invent
/// them: for people to read.
[[nodiscard]] std::string host_name();

/// Of the running kernel (/proc/sys/kernel/random/boot_id), the same in all its containers. Empty
/// if it cannot be read.
[[nodiscard]] std::string boot_id();

}  // namespace chorus
