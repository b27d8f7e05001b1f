// What it takes to bring a message from one rank's memory to another's of the same host.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

namespace chorus {

/// Seconds of a core for one message, by the ways there are; infinite where there is none.
struct MessageCopies {
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  double stage_s = kNever;   ///< into a slot, by the sender
  double fetch_s = kNever;   ///< out of it, by the receiver
  double stream_s = kNever;  ///< into a slot by stores that go past the caches, by the sender
  double fetch_streamed_s = kNever;  ///< out of it then, by the receiver
  double kernel_s = kNever;          ///< at once, by the receiver: the kernel reads the sender's

  bool operator==(const MessageCopies&) const = default;
};

/// By size: [k] is of 2^k bytes. Empty: nothing is known, and messages go through slots.
struct MessageCopiesBySize {
  std::vector<MessageCopies> of;
  /// Of messages in a row one is staged while the one before is fetched.
  bool overlap = true;
};

/// Until a message that comes alone is there, or of messages in a row until the next may follow.
inline double together_s(double sender_s, double receiver_s, bool overlap) {
  return overlap ? std::max(sender_s, receiver_s) : sender_s + receiver_s;
}

}  // namespace chorus
