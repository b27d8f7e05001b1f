// Short messages between two ranks that share memory: whole, in order, without slots or credits.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "chorus/schedule.hpp"
#include "transports/link/sleeper.hpp"

namespace chorus {

/// One message, or what tells of it, in one cache line: the receiver takes one cache miss.
struct alignas(64) EagerSlot {
  static constexpr std::size_t kInlineBytes = 48;

  /// Message number n (0-based) is slot n mod kSlots and is there once sequence == n + 1.
  /// Everything below is written before and read after.
  std::atomic<std::uint64_t> sequence;
  std::uint32_t tag;
  std::uint32_t size_bytes;
  std::byte payload[kInlineBytes];  ///< if the message fits; else it lies in EagerRingMemory::bytes
};
static_assert(sizeof(EagerSlot) == 64);

/// One direction of an EagerRing: written by the sender, but for `taken`. In zeroed pages that both
/// ranks map; no constructor runs.
struct EagerRingMemory {
  static constexpr std::size_t kSlots = 128;
  static constexpr std::size_t kBytes = 64 * 1024;

  alignas(128) std::atomic<std::uint64_t> taken;  ///< messages, told by quarters of either ring
  alignas(128) EagerSlot slots[kSlots];
  std::byte bytes[kBytes];
};

/// This rank's end: it puts into the peer's memory and takes from its own. As many messages as the
/// memory holds can be under way, whatever their sizes.
///
/// A message beyond EagerSlot::kInlineBytes lies in a ring of bytes, in one piece, after the one
/// before it: both ends know where without being told.
///
/// Memory ordering. The sender writes a message and then stores its sequence; the receiver loads
/// the sequence and reads the rest only when it is the expected one: release and acquire. A slot
/// and its bytes are written again only after `taken`, stored after they were read, says so:
/// release and acquire again. Loads are sequentially consistent because of sleeping (see
/// sleeper.hpp); the fence that the store needs for it is left to announce(), once for many
/// messages: as part of each store it would wait, each time, for the line to come from the peer.
///
/// One thread at a time; the peer may be another thread or process.
class EagerRing {
 public:
  /// Of one message. Longer ones go as tiles through slots.
  static constexpr std::size_t kMostBytes = 8 * 1024;

  /// `asleep` and `pipe` as wake_if_sleeping(): the peer's. Both memories outlive this.
  EagerRing(Rank rank, Rank peer, EagerRingMemory& theirs, EagerRingMemory& own,
            std::atomic<std::uint32_t>& asleep, int pipe)
      : rank_(rank), peer_(peer), out_(theirs), in_(own), asleep_(asleep), pipe_(pipe) {}

  /// False, having done nothing, if there is no room. The message has been copied when this
  /// returns; announce() before doing anything else for long.
  [[nodiscard]] bool try_put(std::span<const std::byte> message, std::uint32_t tag);
  /// Wakes a peer that sleeps, for the messages put since the last call.
  void announce() {
    if (!unannounced_) return;
    unannounced_ = false;
    std::atomic_thread_fence(std::memory_order_seq_cst);
    wake_if_sleeping(asleep_, pipe_);
  }

  /// True if a message is there that has not been taken.
  [[nodiscard]] bool has_message() const {
    return next_slot().sequence.load(std::memory_order_seq_cst) == taken_ + 1;
  }
  /// Its tag.
  [[nodiscard]] std::uint32_t tag() const { return next_slot().tag; }
  /// Copies it to `memory`, of its size, and frees its place. Throws LinkError if it is of another
  /// size: its tag is no honest one.
  void take(std::span<std::byte> memory);
  /// Fetches the beginning of the message to come, of `size_bytes`, while it is awaited.
  void look_ahead(std::size_t size_bytes) const;

  [[nodiscard]] std::uint64_t sent() const { return sent_; }
  [[nodiscard]] std::uint64_t sent_bytes() const { return sent_bytes_; }
  [[nodiscard]] std::uint64_t taken() const { return taken_; }

 private:
  static constexpr std::size_t kLine = 64;

  /// Where the bytes of a message go that follows `before` bytes, places left free included; and
  /// what that count is after it.
  struct Piece {
    std::uint64_t at = 0;
    std::uint64_t end = 0;
  };
  [[nodiscard]] static Piece piece_after(std::uint64_t before, std::size_t size_bytes) {
    const std::size_t rounded = (size_bytes + kLine - 1) / kLine * kLine;
    const std::uint64_t left = EagerRingMemory::kBytes - before % EagerRingMemory::kBytes;
    const std::uint64_t begin = rounded <= left ? before : before + left;
    return {begin % EagerRingMemory::kBytes, begin + rounded};
  }
  [[nodiscard]] const EagerSlot& next_slot() const {
    return in_.slots[taken_ % EagerRingMemory::kSlots];
  }
  [[nodiscard]] bool refresh();
  void tell_taken();
  [[noreturn]] void complain(const char* what) const;

  const Rank rank_;
  const Rank peer_;

  EagerRingMemory& out_;
  std::uint64_t sent_ = 0;
  std::uint64_t sent_limit_ = EagerRingMemory::kSlots;  ///< messages up to here have a free slot
  std::uint64_t put_bytes_ = 0;    ///< of the ring of bytes, places left free included
  std::uint64_t freed_bytes_ = 0;  ///< of these, known to be free again
  std::uint64_t sent_bytes_ = 0;
  std::array<std::uint64_t, EagerRingMemory::kSlots> ends_{};  ///< put_bytes_ after each message
  bool unannounced_ = false;

  EagerRingMemory& in_;
  std::uint64_t taken_ = 0;
  std::uint64_t taken_bytes_ = 0;  ///< as put_bytes_
  std::uint64_t told_ = 0;         ///< of taken_
  std::uint64_t told_bytes_ = 0;

  std::atomic<std::uint32_t>& asleep_;
  const int pipe_;
};

}  // namespace chorus
