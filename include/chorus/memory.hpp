// Memory that the ranks of one host reach in each other without a copy.
#pragma once

#include <cstddef>
#include <limits>
#include <new>

#include "chorus/export.hpp"

namespace chorus {

/// Memory of this process, aligned to 64 bytes (4096 from 64 KiB on) and zero when it is new. Use
/// it for the buffers of collectives where speed matters: other ranks of this host then read and
/// write them in place. It works as any other memory and with any communicator, also between hosts;
/// ranks need not use it alike. Its pages are made at once, huge ones where the system gives them.
///
/// Any thread. Throws std::bad_alloc.
[[nodiscard]] CHORUS_API void* allocate(std::size_t size_bytes);

/// Gives back what allocate() returned (null is fine). No collective may be using it any more.
CHORUS_API void deallocate(void* memory) noexcept;

/// The same for containers: std::vector<float, chorus::Allocator<float>>.
template <class T>
struct Allocator {
  using value_type = T;

  Allocator() = default;
  template <class U>
  constexpr Allocator(const Allocator<U>& /*other*/) noexcept {}

  [[nodiscard]] T* allocate(std::size_t count) {
    if (count > std::numeric_limits<std::size_t>::max() / sizeof(T))
      throw std::bad_array_new_length();
    return static_cast<T*>(chorus::allocate(count * sizeof(T)));
  }
  void deallocate(T* memory, std::size_t /*count*/) noexcept { chorus::deallocate(memory); }

  template <class U>
  bool operator==(const Allocator<U>& /*other*/) const noexcept {
    return true;
  }
};

}  // namespace chorus
