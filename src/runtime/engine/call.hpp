// Which fields of a Call its kind takes notice of; the others may hold anything.
#pragma once

#include <cstdint>

#include "chorus/communicator.hpp"
#include "model/schedule/contract.hpp"

namespace chorus {

[[nodiscard]] constexpr bool combines(Call::Kind kind) {
  return kind == Call::Kind::all_reduce || kind == Call::Kind::reduce ||
         kind == Call::Kind::reduce_scatter;
}

[[nodiscard]] constexpr bool rooted(Call::Kind kind) {
  return kind == Call::Kind::broadcast || kind == Call::Kind::reduce ||
         kind == Call::Kind::gather || kind == Call::Kind::scatter;
}

[[nodiscard]] constexpr bool is_message(Call::Kind kind) {
  return kind == Call::Kind::send || kind == Call::Kind::recv;
}

/// What contributions are combined by; a plain sum for calls that combine nothing.
[[nodiscard]] constexpr Reduction reduction_of(const Call& call) {
  return combines(call.kind) ? call.reduction : Reduction{};
}

/// The root, or the other end of a message; 0 for calls that have neither.
[[nodiscard]] constexpr Rank peer_of(const Call& call) {
  return rooted(call.kind) || is_message(call.kind) ? call.peer : 0;
}

// The collectives come first among calls, in the order of CollectiveKind.
static_assert(static_cast<int>(Call::Kind::all_reduce) ==
                  static_cast<int>(CollectiveKind::all_reduce) &&
              static_cast<int>(Call::Kind::barrier) == static_cast<int>(CollectiveKind::barrier));

/// The collective that a call up to Call::Kind::barrier is.
[[nodiscard]] constexpr Collective collective_of(const Call& call) {
  return {.kind = static_cast<CollectiveKind>(call.kind), .root = peer_of(call)};
}

/// Bytes of the whole of it, as PlanEntry counts them.
[[nodiscard]] inline std::uint64_t size_bytes_of(const Call& call, int world_size) {
  const bool whole = num_blocks(collective_of(call).kind, world_size) == 1;
  return static_cast<std::uint64_t>(whole ? 1 : world_size) * call.count * size_of(call.type);
}

}  // namespace chorus
