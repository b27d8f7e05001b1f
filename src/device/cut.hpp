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
  /// Chunks begin on lines of memory where that makes none much shorter.
  CHORUS_INLINE std::uint64_t line(std::uint64_t elements) const {
    const std::uint64_t per_line = kLineBytes / element;
    return chunks > 1 && elements / chunks >= 8 * per_line ? per_line : 1;
  }
  CHORUS_INLINE std::uint64_t begin(std::uint32_t chunk, std::uint64_t elements) const {
    if (chunk >= chunks) return elements;
    return chunk * elements / chunks / line(elements) * line(elements);
  }
  /// No chunk of a tile of so many elements has more.
  CHORUS_INLINE std::uint64_t longest(std::uint64_t elements) const {
    if (chunks == 1) return elements;
    return (elements + chunks - 1) / chunks + (line(elements) > 1 ? line(elements) : 0);
  }
};

}  // namespace chorus::device
