// Words of host memory that kernels read and write while the host does.
#pragma once

#include <cstdint>

namespace chorus::device {

/// What came before a value that is seen is seen, too.
inline std::uint64_t seen(const std::uint64_t& word) {
  return __atomic_load_n(&word, __ATOMIC_ACQUIRE);
}
/// Whoever sees the value sees what came before it.
inline void show(std::uint64_t& word, std::uint64_t value) {
  __atomic_store_n(&word, value, __ATOMIC_RELEASE);
}

}  // namespace chorus::device
