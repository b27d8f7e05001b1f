// How a communicator numbers what it is called to do.
#pragma once

#include <cstdint>
#include <string>

#include "chorus/schedule.hpp"

namespace chorus {

/// Collectives count from 1, the same on all ranks. A message's number says its ends, and which
/// message between them it is; the top bit keeps it apart from collectives.
struct MessageNumber {
  Rank from = -1;
  Rank to = -1;
  std::uint32_t index = 0;  ///< modulo 2^31

  static constexpr std::uint64_t kMark = 1ULL << 63;

  static constexpr bool is_message(std::uint64_t number) { return (number & kMark) != 0; }
  [[nodiscard]] constexpr std::uint64_t pack() const {
    return kMark | static_cast<std::uint64_t>(from) << 47 | static_cast<std::uint64_t>(to) << 31 |
           (index & 0x7fffffff);
  }
  static constexpr MessageNumber unpack(std::uint64_t number) {
    return {static_cast<Rank>(number >> 47 & 0xffff), static_cast<Rank>(number >> 31 & 0xffff),
            static_cast<std::uint32_t>(number & 0x7fffffff)};
  }
};

/// "call 17" or "message 3".
inline std::string name_of_call(std::uint64_t number) {
  if (!MessageNumber::is_message(number)) return "call " + std::to_string(number);
  return "message " + std::to_string(MessageNumber::unpack(number).index);
}

}  // namespace chorus
