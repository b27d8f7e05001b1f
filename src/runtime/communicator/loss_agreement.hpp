// What the ranks that outlive a loss make of the calls that it met. A rule without memory, sockets
// or time: each survivor applies it to the same states and comes to what all others come to.
//
// A call is over on a rank when its barrier is: then all ranks, those that die later among them,
// have had their whole result. So either nobody has returned from it, and it can be made again from
// kept inputs by those that are left, or everybody has the result of all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace chorus {

/// How far a rank was when it learned of the loss.
enum class CallPhase : std::uint8_t {
  outside,  ///< in no call that can be finished: in a message, a group, a call that was started
  running,  ///< in a call, without its result or with a part of it
  executed  ///< in the barrier behind a call, with its whole result
};

struct CallState {
  std::uint64_t begun = 0;  ///< calls that can be finished, the one under way included
  CallPhase phase = CallPhase::outside;
  std::string signature = {};  ///< of the call under way
};

enum class LossOutcome : std::uint8_t {
  complete,  ///< the call returns what it has: all ranks were in it
  again,     ///< the survivors make it once more, without those that are lost
  fail       ///< it throws, on all that are in it
};

/// What becomes of a loss on one survivor.
struct Agreed {
  LossOutcome outcome = LossOutcome::fail;  ///< of the call under way
  /// The call is complete, and others are in the next one already: the loss is met by that one, on
  /// all ranks, and this becomes of it.
  std::optional<LossOutcome> next = std::nullopt;

  bool operator==(const Agreed&) const = default;
};
/// For survivor `mine` of `all`.
[[nodiscard]] Agreed agree_on(std::span<const CallState> all, std::size_t mine);

}  // namespace chorus
