// A file that another process of this machine has open, and this one opens as well.
#pragma once

#include <cstdint>
#include <string>

#include "base/files/fd.hpp"

namespace chorus {

/// Opens descriptor `fd` of process `pid` if it is the file that we were told of; else nothing, and
/// why in `reason`, as a clause. `kind`: S_IFREG or S_IFIFO.
[[nodiscard]] Fd open_foreign(int pid, int fd, unsigned kind, std::uint64_t inode, int flags,
                              std::string& reason);

}  // namespace chorus
