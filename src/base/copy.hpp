// Copies of payload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace chorus {

/// Whether `to` begins less than a line behind `from`, whole pages aside, as what malloc() gives
/// for a large buffer does behind a page. Processors of AMD then copy at a twentieth of their rate
/// where it is done by one instruction (rep movsb: the C library from 2 KiB or so on, the kernel
/// always), each store being taken for one that the next load has to wait for: 1.9 in place of
/// 40 GB/s, and 1.7 in place of 9 by the kernel (docs/benchmarks.md).
[[nodiscard]] inline bool chases(const void* to, const void* from) {
  const std::uintptr_t behind =
      (reinterpret_cast<std::uintptr_t>(to) - reinterpret_cast<std::uintptr_t>(from)) % 4096;
  return behind - 1 < 63;
}

/// std::memcpy() of more than 256 bytes without that instruction.
void copy_in_pieces(void* to, const void* from, std::size_t size_bytes);

/// std::memcpy() that is as fast wherever the bytes lie. No bytes may lie at null.
inline void copy_bytes(void* to, const void* from, std::size_t size_bytes) {
  constexpr std::size_t kLeast = 2048;        // below, no C library uses that instruction
  constexpr std::size_t kMost = 1024 * 1024;  // nor beyond, where pieces are the slower ones
  if (size_bytes > kLeast && size_bytes <= kMost && chases(to, from)) {
    copy_in_pieces(to, from, size_bytes);
  } else if (size_bytes > 0) {
    std::memcpy(to, from, size_bytes);
  }
}

/// Copies by stores that go past the caches, in any order with others until end_streams(). For each
/// line that is stored one of each `ahead` is fetched, at the same place.
void stream_bytes(void* to, const void* from, std::size_t size_bytes,
                  std::span<const void* const> ahead = {});
/// What has been streamed comes before all later stores.
void end_streams();

}  // namespace chorus
