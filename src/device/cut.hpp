// How kernels and the host cut calls.
#pragma once

#include <cstdint>

#include "device/layout.hpp"

namespace chorus::device {

/// How the elements of a call are cut: into tiles, and tiles into chunks. The host cuts alike.
struct Cut {
  std::uint64_t count;  ///< elements of one block
  std::uint64_t tile_count;
  std::uint32_t chunks;   ///< per block
  std::uint32_t element;  ///< bytes

  CHORUS_INLINE std::uint64_t tile_elements(std::uint64_t tile) const {
    const std::uint64_t begin = tile * tile_count;
    return begin >= count ? 0 : smaller(tile_count, count - begin);
  }
  /// Elements of each chunk of `elements`, but for the last ones, which have what is left. Whole
  /// lines of memory where that makes none much longer, so that all of them begin on one.
  CHORUS_INLINE std::uint64_t longest(std::uint64_t elements) const {
    const std::uint64_t even = (elements + chunks - 1) / chunks;
    const std::uint64_t line = kLineBytes / element;
    return chunks > 1 && even >= 8 * line ? (even + line - 1) & ~(line - 1) : even;
  }
  CHORUS_INLINE std::uint64_t begin(std::uint32_t chunk, std::uint64_t elements) const {
    return smaller(chunk * longest(elements), elements);
  }
};

/// Bytes of a direct move that each block does, but the last ones: whole lines.
CHORUS_INLINE std::uint64_t share_of_block(std::uint64_t bytes, std::uint32_t blocks) {
  return round_up((bytes + blocks - 1) / blocks, kLineBytes);
}

}  // namespace chorus::device
