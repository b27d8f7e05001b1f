// What the ranks of one host have in common: memory that each writes for all others to read.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/files/fd.hpp"
#include "chorus/schedule.hpp"
#include "transports/link/mapping.hpp"
#include "transports/shm/foreign_memory.hpp"

#if defined(__SANITIZE_THREAD__)
extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}
#endif

namespace chorus {

/// Where bytes of one rank lie, as it tells the others.
struct Reference {
  static constexpr std::uint16_t kNone = 0;
  static constexpr std::uint16_t kStaged = 1;    ///< in its slots (or in the offer itself)
  static constexpr std::uint16_t kOwnSpace = 2;  ///< `where` is an address of the one process
  /// `where` is an address of its owner's process, whose memory the kernel copies.
  static constexpr std::uint16_t kPrivate = 3;
  static constexpr std::uint16_t kSegment = 4;  ///< and above: `where` counts within a segment

  std::uint16_t kind = kNone;
  std::uint64_t where = 0;
};

/// "My buffers are ready for call `number`", with the data where that is small: up to 40 bytes of
/// it are in the same cache line, the rest in its neighbour. Everything below `sequence` is written
/// before it and read after it.
struct alignas(128) Offer {
  static constexpr std::size_t kInlineBytes = 104;
  struct Buffers {
    std::uint64_t where[2];  ///< the input and the output, unless their kinds are below kOwnSpace
    std::int64_t begun_ns;   ///< when the call began, by the host's steady clock; 0: not told
  };

  std::atomic<std::uint64_t> sequence;  ///< number + 1
  /// What the counter of that name is by now: whoever reads offers need not fetch its line.
  std::uint64_t passed;
  std::uint32_t tag;
  std::uint16_t input_kind;
  std::uint16_t output_kind;
  union {
    Buffers buffers;
    std::byte payload[kInlineBytes];
  };
};
static_assert(sizeof(Offer) == 128);

/// The memory that the ranks of a communicator share, one object per rank. Each rank owns a part,
/// which it alone writes; all map all parts. A part has offers, counters and slots:
///
/// - offers: a ring of kOffers lines, one per call;
/// - advice: of each kind of call, what this rank asks of all in it;
/// - counters: tiles of data that this rank has staged, has folded, and has passed (it needs no
///   more of others);
/// - staging: a ring of kSlots slots, tile t of all calls in slot t mod kSlots: data for the
/// others;
/// - results: the same for what this rank made of it.
///
/// Whoever writes a slot first waits until all others have passed the tile that was in it. Counters
/// never wrap and count alike on all ranks. What a peer says is believed within bounds only: a
/// reference outside the segment is a LinkError.
///
/// One thread at a time. How it is found, mapped and proved: docs/transports/shm.md.
class SharedWindow {
 public:
  static constexpr std::uint64_t kOffers = 8;
  static constexpr std::uint64_t kSlots = 4;
  static constexpr std::size_t kMaxRanks = 128;  ///< each maps all parts and waits for all
  static constexpr std::size_t kMaxSegments = 512;
  static constexpr std::size_t kAdvisedSets = 64, kAdvisedPerSet = 4;  ///< kinds of calls

  struct SegmentEntry {
    std::atomic<std::uint64_t> id;  ///< 0: none; written last
    std::uint64_t size_bytes;
    std::uint64_t inode;
    std::int32_t fd;
    std::int32_t reserved;
  };
  /// The beginning of a part, in zeroed pages; no constructor runs.
  struct Part {
    std::uint64_t self;  ///< where its owner has mapped it: its name for the thread sanitizer
    alignas(128) std::atomic<std::uint64_t> staged;  ///< tiles
    std::atomic<std::uint64_t> folded;
    alignas(128) std::atomic<std::uint64_t> passed;
    alignas(128) std::atomic<std::uint32_t> accessing;  ///< memory of others, just now
    alignas(128) std::atomic<std::uint32_t> withdrawn;  ///< its memory is no longer to be accessed
    alignas(128) std::atomic<std::uint32_t> core;       ///< + 1, where it last waited; 0: nowhere
    /// 2 · (number + 1) of the last call in which the kernel refused it private memory of others;
    /// + 1: it always will.
    alignas(128) std::atomic<std::uint64_t> refused;
    /// By key, with which a word begins: how buffers are to reach their readers (Advice).
    alignas(128) std::atomic<std::uint64_t> advice[kAdvisedSets][kAdvisedPerSet];
    Offer offers[kOffers];
    SegmentEntry segments[kMaxSegments];
  };

  /// A peer's part and what is needed to reach its process.
  struct Peer {
    Mapping memory;  ///< of the part
    Part* part = nullptr;
    std::byte* slots = nullptr;
    int pid = 0;
    bool same_process = false;
    std::atomic<std::uint32_t>* sleeping = nullptr;
    Mapping header;  ///< that `sleeping` lies in
    std::shared_ptr<const Fd> pipe;
    int pipe_fd = -1;  ///< its number: read with every wake-up
    struct Mapped {
      std::uint64_t id = 0;
      Mapping memory;
    };
    std::vector<Mapped> segments;  ///< by index, as they are needed
  };

  [[nodiscard]] static std::size_t part_bytes(std::size_t slot_bytes);

  /// `peers` [world_size], the own part included.
  SharedWindow(Rank rank, std::size_t slot_bytes, std::vector<Peer> peers);

  [[nodiscard]] Rank rank() const { return rank_; }
  [[nodiscard]] int world_size() const { return static_cast<int>(peers_.size()); }
  [[nodiscard]] std::size_t slot_bytes() const { return slot_bytes_; }
  /// All ranks are threads of this process.
  [[nodiscard]] bool is_one_process() const { return one_process_; }
  [[nodiscard]] Part& own() { return *own_; }
  [[nodiscard]] const Part& part(Rank peer) const { return *at(peer).part; }
  [[nodiscard]] std::byte* staging(Rank peer, std::uint64_t tile) const {
    return at(peer).slots + tile % kSlots * stride_;
  }
  [[nodiscard]] std::byte* results(Rank peer, std::uint64_t tile) const {
    return at(peer).slots + (kSlots + tile % kSlots) * stride_;
  }

  /// Makes a counter of the own part visible, with all that was written before.
  void publish(std::atomic<std::uint64_t>& counter, std::uint64_t value) {
#if defined(__SANITIZE_THREAD__)
    __tsan_release(reinterpret_cast<void*>(own_->self));
#endif
    counter.store(value, std::memory_order_release);
  }
  /// Reads a counter of `peer`; what it wrote before can be read after.
  [[nodiscard]] std::uint64_t seen(Rank peer, const std::atomic<std::uint64_t>& counter) const {
    const std::uint64_t value = counter.load(std::memory_order_acquire);
#if defined(__SANITIZE_THREAD__)
    // Threads map a part at different addresses, which the sanitizer takes for different memory.
    __tsan_acquire(reinterpret_cast<void*>(at(peer).part->self));
#endif
    static_cast<void>(peer);
    return value;
  }

  /// How to tell the others of [memory, memory + size_bytes): in a segment, or by its address where
  /// all ranks are threads of this process; else none.
  [[nodiscard]] Reference refer(const void* memory, std::size_t size_bytes);
  /// The same memory in this process.
  [[nodiscard]] std::byte* reach(Rank peer, const Reference& reference, std::size_t size_bytes);

  /// What one rank asks of all in calls alike.
  struct Advice {
    bool by_kernel = false;  ///< their private buffers are to be read by the kernel, not staged
    bool timed = false;      ///< they are to say when their call began
  };
  /// Of calls of this key, below 2^62. Told and heard between calls: a peer may hear it a call
  /// late.
  void advise(std::uint64_t key, Advice advice);
  /// Nothing where `peer` has advised nothing of such calls, or of hundreds of other kinds since.
  [[nodiscard]] std::optional<Advice> advice_of(Rank peer, std::uint64_t key) const;

  /// Copies [where, where + to.size()) of the peer's process. Throws LinkError if the peer is gone.
  [[nodiscard]] ForeignRead read_private(Rank peer, std::uint64_t where,
                                         std::span<std::byte> to) const;

  /// Around every access to memory of others that is not in their parts. False: one of them has
  /// given up and may use it for something else; do not touch it.
  [[nodiscard]] bool begin_access();
  void end_access() { own_->accessing.store(0, std::memory_order_release); }
  /// After a failure: returns when nobody accesses this rank's memory any more, nor will.
  void withdraw();

  /// Whether another rank last waited on the core that this thread is on, which it tells the
  /// others.
  [[nodiscard]] bool shares_core();
  /// Moves the calling thread to a core where no rank last waited; where it may run later is as
  /// before. False if there is none for it.
  bool leave_core();

  /// Wakes all who sleep. Whatever was published is seen by them before they sleep again.
  void wake_sleepers();

 private:
  [[nodiscard]] const Peer& at(Rank peer) const { return peers_[static_cast<std::size_t>(peer)]; }
  [[nodiscard]] int register_segment(const struct Segment& segment);
  [[nodiscard]] std::span<std::byte> map_segment(Rank peer, std::size_t index);
  [[noreturn]] void complain(Rank peer, const char* what) const;

  Rank rank_;
  std::size_t slot_bytes_;
  std::size_t stride_;
  std::vector<Peer> peers_;
  Part* own_;
  bool one_process_ = true;
  std::vector<std::uint64_t> registered_;  ///< segment ids, by index
};

}  // namespace chorus
