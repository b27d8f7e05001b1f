// What every command says, with exit status 2, where memory is exhausted (std::bad_alloc).
#pragma once

namespace chorus {

inline constexpr const char* kMemoryExhausted =
    "memory is exhausted: ask for less (fewer ranks, chunks or sizes), or allow more (ulimit -v, "
    "the memory limit of the container)";

}  // namespace chorus
