// Which fields of a Call its kind takes notice of; the others may hold anything.
#pragma once

#include "chorus/communicator.hpp"

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

}  // namespace chorus
