// The memory files behind chorus::allocate(), as the shm transport sees them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace chorus {

/// One memory file of this process. It is sealed against shrinking and has no name.
struct Segment {
  std::uint64_t id = 0;  ///< never used again
  std::byte* base = nullptr;
  std::size_t size_bytes = 0;
  int fd = -1;
  std::uint64_t inode = 0;
};

/// The segment that holds [memory, memory + size_bytes), if allocate() gave it out. Takes a lock:
/// callers keep the answer while segments_generation() stays the same.
[[nodiscard]] std::optional<Segment> segment_of(const void* memory, std::size_t size_bytes);
[[nodiscard]] bool segment_lives(std::uint64_t id);
/// All that there are, by address. Takes the lock too.
[[nodiscard]] std::vector<Segment> segments();

/// Changes whenever a segment is made or given back.
[[nodiscard]] std::uint64_t segments_generation();

}  // namespace chorus
