// Ports: the slots-and-credits protocol that turns a Link's puts into FIFOs of messages.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "transports/link/link.hpp"

namespace chorus {

/// How the region of every link of a communicator is divided. Data channel d has `slots` slots of
/// `slot_bytes`, message k lies in slot k mod slots; credits for d travel on link channel
/// `data_channels + d`.
struct SlotLayout {
  int data_channels = 1;
  int slots = 4;
  std::size_t slot_bytes = 0;

  [[nodiscard]] std::size_t region_bytes() const {
    return static_cast<std::size_t>(data_channels) * slots * slot_bytes;
  }
  [[nodiscard]] std::size_t offset(int channel, std::uint64_t message) const {
    return (static_cast<std::size_t>(channel) * slots + message % slots) * slot_bytes;
  }
  /// The receiver returns credits in batches of half the slots, so a sender can count on this many
  /// messages in flight, and no more.
  [[nodiscard]] int guaranteed_slots() const { return slots - credit_batch() + 1; }
  [[nodiscard]] int credit_batch() const { return slots / 2; }
};

/// The total of which a tag carries the low 32 bits. It is never far from what is `known` of it.
[[nodiscard]] inline std::uint64_t whole_total(std::uint64_t known, std::uint32_t low) {
  return known + static_cast<std::uint32_t>(low - static_cast<std::uint32_t>(known));
}

/// The same, where `low` may be of an older total than the one known.
[[nodiscard]] inline std::uint64_t newer_total(std::uint64_t known, std::uint32_t low) {
  const auto more = static_cast<std::int32_t>(low - static_cast<std::uint32_t>(known));
  return more > 0 ? known + static_cast<std::uint64_t>(more) : known;
}

/// The sending end of one channel to one peer.
struct OutPort {
  Link* link = nullptr;
  int channel = 0;
  std::uint64_t sent = 0;  ///< messages put so far
  std::uint64_t sent_bytes = 0;
  std::uint64_t consumed = 0;  ///< of these, known to be taken by the peer
  /// Where the peer's messages bring credits along; else null.
  PiggybackedCredits* piggybacked_credits = nullptr;

  /// True if the peer has a slot for the next message.
  bool has_credit(const SlotLayout& layout) {
    if (sent - consumed < static_cast<std::uint64_t>(layout.slots)) return true;
    return read_credits(layout) && sent - consumed < static_cast<std::uint64_t>(layout.slots);
  }
  /// Where the next message goes in the peer's memory, if that is mapped here; else null.
  [[nodiscard]] std::byte* window(const SlotLayout& layout) const {
    const auto region = link->peer_region();
    return region.empty() ? nullptr : region.data() + layout.offset(channel, sent);
  }
  /// Puts the next message; `in_place` if it already lies in window().
  [[nodiscard]] bool try_send(const SlotLayout& layout, std::span<const std::byte> message,
                              bool in_place, std::uint32_t tag) {
    const auto src = in_place ? std::span<const std::byte>() : message;
    if (!link->try_put(src, layout.offset(channel, sent), channel, tag)) return false;
    ++sent;
    sent_bytes += message.size();
    return true;
  }
  /// True when the first `messages` messages no longer need their source.
  [[nodiscard]] bool released(std::uint64_t messages) const {
    return link->released(channel) >= messages;
  }

 private:
  bool read_credits(const SlotLayout& layout);
  std::uint64_t credit_arrivals_ = 0;
};

/// The receiving end of one channel from one peer.
struct InPort {
  Link* link = nullptr;
  int channel = 0;
  std::uint64_t taken = 0;     ///< messages consumed so far
  std::uint64_t credited = 0;  ///< of these, told to the peer
  /// Where messages to the peer take credits along; else null.
  PiggybackedCredits* piggybacked_credits = nullptr;
  /// Where messages may be received into the memory they are for; else null.
  PostedReceives* posted_receives = nullptr;
  std::uint64_t foreseen = 0;  ///< messages whose receive may have been posted

  [[nodiscard]] bool has_message() { return link->arrivals(channel) > taken; }
  [[nodiscard]] std::uint32_t tag() const { return link->tag(channel, taken); }
  [[nodiscard]] const std::byte* message(const SlotLayout& layout) const {
    return link->region().data() + layout.offset(channel, taken);
  }
  /// True if the next message, which has come, is where expect() wanted it, and not in its slot.
  [[nodiscard]] bool in_place() const {
    return posted_receives != nullptr && posted_receives->in_place(channel, taken);
  }
  /// Message `foreseen` is for `memory`, of its size.
  void expect(const SlotLayout& layout, std::span<std::byte> memory, std::uint32_t tag) {
    posted_receives->expect(
        channel, foreseen,
        {.memory = memory, .offset = layout.offset(channel, foreseen), .tag = tag});
  }
  /// The message has been read; its slot may be written again.
  void take(const SlotLayout& layout) {
    ++taken;
    if (piggybacked_credits != nullptr)
      piggybacked_credits->tell(channel, static_cast<std::uint32_t>(taken));
    if (owes_credit(layout)) credit(layout);
  }
  /// Tells the peer, if the link has room; otherwise the next take() or credit() does.
  void credit(const SlotLayout& layout) {
    // The tag carries the total, so nothing is lost when credits are late or merged.
    if (link->try_put({}, 0, layout.data_channels + channel, static_cast<std::uint32_t>(taken))) {
      credited = taken;
    }
  }
  [[nodiscard]] bool owes_credit(const SlotLayout& layout) {
    const auto batch = static_cast<std::uint64_t>(layout.credit_batch());
    if (taken - credited < batch) return false;
    if (piggybacked_credits == nullptr) return true;
    credited = newer_total(credited, piggybacked_credits->told(channel));
    return taken - credited >= batch;
  }
};

inline bool OutPort::read_credits(const SlotLayout& layout) {
  const std::uint64_t before = consumed;
  const int credit_channel = layout.data_channels + channel;
  const std::uint64_t arrivals = link->arrivals(credit_channel);
  if (arrivals != credit_arrivals_) {
    credit_arrivals_ = arrivals;
    consumed = newer_total(consumed, link->tag(credit_channel, arrivals - 1));
  }
  if (piggybacked_credits != nullptr)
    consumed = newer_total(consumed, piggybacked_credits->heard(channel));
  return consumed != before;
}

}  // namespace chorus
