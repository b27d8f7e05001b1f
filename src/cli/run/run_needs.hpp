// Whether this machine has what so many ranks need, before the first of them is started.
#pragma once

#include <cstddef>

namespace chorus {

/// Raises this process's limit of open files as far as it has to. Throws InputError with the limit
/// and the number needed: open files (`captures`: the launcher reads what its ranks print),
/// processes, memory.
void require_room(std::size_t num_ranks, bool captures);

}  // namespace chorus
