// Folds and copies into several places, or past the caches.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "collectives/reduce.hpp"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace chorus {
namespace {

// A piece that stays in the first-level cache beside its sources while it is copied on.
constexpr std::size_t kPiece = 8192;
constexpr std::size_t kMostSources = 64;

#if defined(__SSE2__)
/// Leaves the order of its stores to a later _mm_sfence().
void stream_copy(void* out, const void* in, std::size_t size_bytes) {
  auto* to = static_cast<std::uint8_t*>(out);
  const auto* from = static_cast<const std::uint8_t*>(in);
  const std::size_t head =
      std::min<std::size_t>(size_bytes, -reinterpret_cast<std::uintptr_t>(to) % 64);
  std::memcpy(to, from, head);
  std::size_t at = head;
  for (; at + 64 <= size_bytes; at += 64) {
    __m128i line[4];
    for (int i = 0; i < 4; ++i) {
      line[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at) + i);
    }
    for (int i = 0; i < 4; ++i) _mm_stream_si128(reinterpret_cast<__m128i*>(to + at) + i, line[i]);
  }
  std::memcpy(to + at, from + at, size_bytes - at);
}
void end_streams() { _mm_sfence(); }
#else
void stream_copy(void* out, const void* in, std::size_t size_bytes) {
  std::memcpy(out, in, size_bytes);
}
void end_streams() {}
#endif

}  // namespace

void copy(void* out, const void* in, std::size_t size_bytes, bool streams) {
  if (out == in || size_bytes == 0) return;
  if (!streams) {
    std::memcpy(out, in, size_bytes);
    return;
  }
  stream_copy(out, in, size_bytes);
  end_streams();
}

void fold(std::span<void* const> outs, std::span<const void* const> sources, std::size_t count,
          DataType type, ReduceOp op, int divisor, bool streams) {
  if (sources.size() == 1 && divisor == 1) {
    for (void* out : outs) copy(out, sources[0], count * size_of(type), streams);
    return;
  }
  if ((outs.size() == 1 && !streams) || sources.size() > kMostSources) {
    fold(outs[0], sources, count, type, op, divisor);
    for (void* out : outs.subspan(1)) std::memcpy(out, outs[0], count * size_of(type));
    return;
  }
  alignas(64) std::array<std::uint8_t, kPiece> piece;
  std::array<const void*, kMostSources> from;
  const std::size_t element = size_of(type);
  const std::size_t most = kPiece / element;
  for (std::size_t done = 0; done < count; done += most) {
    const std::size_t part = std::min(most, count - done);
    const std::size_t at = done * element;
    for (std::size_t i = 0; i < sources.size(); ++i) {
      from[i] = static_cast<const std::uint8_t*>(sources[i]) + at;
    }
    const auto place = [at](void* out) { return static_cast<std::uint8_t*>(out) + at; };
    void* const made = streams ? piece.data() : static_cast<void*>(place(outs[0]));
    fold(made, std::span(from).first(sources.size()), part, type, op, divisor);
    for (void* out : streams ? outs : outs.subspan(1)) {
      if (streams) {
        stream_copy(place(out), made, part * element);
      } else {
        std::memcpy(place(out), made, part * element);
      }
    }
  }
  if (streams) end_streams();
}

}  // namespace chorus
