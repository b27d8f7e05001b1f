#include "base/copy.hpp"

namespace chorus {

void copy_in_pieces(void* to, const void* from, std::size_t size_bytes) {
  // Larger ones begin behind what the processor reads ahead: 18 in place of 29 GB/s. Of a size that
  // the compiler does not know, so that it leaves them to the C library, which knows the processor.
  std::size_t piece = 256;
  asm("" : "+r"(piece));
  auto* out = static_cast<std::byte*>(to);
  const auto* in = static_cast<const std::byte*>(from);
  for (; size_bytes > piece; size_bytes -= piece, out += piece, in += piece) {
    std::memcpy(out, in, piece);
  }
  std::memcpy(out, in, size_bytes);
}

}  // namespace chorus
