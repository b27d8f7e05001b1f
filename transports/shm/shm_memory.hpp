// The memory of the shm transport: its layout, its owner, and how a peer comes to see it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>

#include "base/files/fd.hpp"
#include "base/secret.hpp"
#include "transports/link/context.hpp"
#include "transports/link/host_identity.hpp"
#include "transports/link/mapping.hpp"
#include "transports/link/wakeups.hpp"
#include "transports/shm/eager_ring.hpp"

namespace chorus {

inline constexpr std::size_t kCacheLine = 64;

/// One put, in one cache line: a small payload and its flag travel together, so that the receiver
/// takes one cache miss where flag and data apart would cost it two.
struct alignas(kCacheLine) ShmSlot {
  static constexpr std::size_t kInlineBytes = 40;
  static constexpr std::uint32_t kInRegion = 0xffffffff;
  static constexpr std::uint32_t kElsewhere = 0xfffffffe;  ///< the payload is a ShmElsewhere

  /// Put number n (0-based) of a channel lives in slot n mod ring_slots and is there once
  /// sequence == n + 1. Everything below is written before and read after.
  std::atomic<std::uint64_t> sequence;
  std::uint32_t tag;
  std::uint32_t length;  ///< of payload, which belongs at offset; kInRegion: already there
  std::uint64_t offset;
  std::byte payload[kInlineBytes];
};
static_assert(sizeof(ShmSlot) == kCacheLine && std::atomic<std::uint64_t>::is_always_lock_free);

/// Where the putter has what belongs at the slot's offset, in its own memory.
struct ShmElsewhere {
  std::uint64_t address;
  std::uint64_t size;
};

/// How much the receiver of a channel has taken out of its ring. Two lines, because the hardware
/// fetches lines in pairs.
struct alignas(2 * kCacheLine) ShmConsumed {
  std::atomic<std::uint64_t> count;
  /// 1 + the last put that the kernel did not let the receiver read, and how far the putter has
  /// copied such into the region.
  std::atomic<std::uint64_t> refused;
  std::atomic<std::uint64_t> brought;
};

/// The first page of a rank's memory.
struct ShmHeader {
  Proof proof;  ///< of the address, under the communicator's secret
  /// 1 while the owner sleeps or is about to. In its own line: every putter reads it every time.
  alignas(2 * kCacheLine) std::atomic<std::uint32_t> sleeping;
};

/// The sizes that both ends must agree on, and where things lie. A rank's memory is
///
///   header page | block of peer 0 | block of peer 1 | … | block of peer world_size − 1 | part of
///   the shared window
///
/// and block p, written by rank p alone (but for the consumed counters), is
///
///   [num_channels] ShmConsumed | [num_channels · ring_slots] ShmSlot | padding | EagerRingMemory |
///   padding | region
///
/// Everything is there from the start, so that connecting needs no message: either end may begin.
/// A page that nobody touches costs nothing.
struct ShmGeometry {
  std::uint32_t world_size = 0;
  std::uint32_t num_channels = 0;
  std::uint32_t ring_slots = 0;  ///< a power of two
  std::uint32_t reserved = 0;
  std::uint64_t region_bytes = 0;
  std::uint64_t slot_bytes = 0;  ///< of the shared window

  bool operator==(const ShmGeometry&) const = default;

  explicit ShmGeometry(const TransportContext& context);
  ShmGeometry() = default;

  [[nodiscard]] std::size_t eager_ring_offset() const;  ///< inside a block
  [[nodiscard]] std::size_t region_offset() const;      ///< inside a block
  [[nodiscard]] std::size_t block_bytes() const;
  [[nodiscard]] std::size_t block_offset(Rank peer) const;  ///< inside the memory
  [[nodiscard]] std::size_t part_offset() const;
  [[nodiscard]] std::size_t total_bytes() const;
};

/// What a rank publishes. Every field is part of the proof in the header it leads to.
struct ShmAddress {
  std::uint64_t magic = 0;
  HostIdentity host;
  std::array<std::uint8_t, 16> nonce{};
  ShmGeometry geometry;
  std::int32_t rank = 0;
  std::int32_t pid = 0;
  std::int32_t memory_fd = -1;
  std::int32_t pipe_fd = -1;
  std::uint64_t memory_inode = 0;
  std::uint64_t pipe_inode = 0;
  // What the kernel goes by when another process asks to look into this one.
  std::uint64_t user_namespace = 0;  ///< inode of /proc/self/ns/user
  std::uint32_t user = 0;
  std::uint32_t group = 0;
  std::uint64_t may_be_traced = 0;  ///< prctl(PR_GET_DUMPABLE)

  static constexpr std::uint64_t kMagic = 0x326d68732d756863;  // "chu-shm2"

  [[nodiscard]] std::span<const std::byte> bytes() const {
    return std::as_bytes(std::span(this, 1));
  }
  /// True if who can open the memory of the one process can open that of the other.
  [[nodiscard]] bool as_reachable_as(const ShmAddress& other) const;
  /// Nothing if `bytes` cannot be an address of this version.
  static std::optional<ShmAddress> parse(std::span<const std::byte> bytes);
};
static_assert(std::has_unique_object_representations_v<ShmAddress>, "padding would leak memory");

/// One block as its users see it.
class ShmBlock {
 public:
  ShmBlock(int fd, const ShmGeometry& geometry, Rank peer);

  [[nodiscard]] ShmConsumed& consumed(ChannelId channel) const;
  [[nodiscard]] std::span<ShmSlot> ring(ChannelId channel) const;  ///< [ring_slots]
  [[nodiscard]] EagerRingMemory& eager_ring() const;
  [[nodiscard]] std::span<std::byte> region() const;

 private:
  Mapping mapping_;
  ShmGeometry geometry_;
};

/// The memory that this rank owns and its peers write into, with what wakes it.
///
/// An anonymous file that peers open through /proc/<pid>/fd: it has no name, so nothing is left
/// when its processes end, however they end; and the kernel lets in only who may look into this
/// process. It cannot shrink, so nobody can make a peer's access fault.
class ShmOwned {
 public:
  /// Throws LinkError if the system gives no memory file or pipe.
  explicit ShmOwned(const TransportContext& context);

  [[nodiscard]] const ShmAddress& address() const { return address_; }
  [[nodiscard]] std::atomic<std::uint32_t>& sleeping() const;
  [[nodiscard]] Wakeups& wakeups() const { return *wakeups_; }
  [[nodiscard]] Wakeups::Sleeper& sleeper() { return sleeper_; }
  [[nodiscard]] const Wakeups::Sleeper& sleeper() const { return sleeper_; }
  [[nodiscard]] ShmBlock block(Rank peer) const;
  /// The own part of the shared window, mapped.
  [[nodiscard]] Mapping part() const;

 private:
  Fd memory_;
  std::shared_ptr<Wakeups> wakeups_;
  Wakeups::Sleeper sleeper_;
  Mapping header_;
  Mapping part_;
  ShmAddress address_;
};

/// A peer's memory, seen through its address.
struct ShmOpened {
  Mapping header;
  Fd memory;
  std::shared_ptr<const Fd> pipe;  ///< writing a byte wakes the owner

  [[nodiscard]] std::atomic<std::uint32_t>& sleeping() const;
};

/// Opens what `peer` published and believes nothing before the proof. On failure returns nothing
/// and says why in `reason`, as a clause.
[[nodiscard]] std::optional<ShmOpened> open_peer(const ShmAddress& own, const Secret& secret,
                                                 std::span<const std::byte> peer_address,
                                                 Wakeups& wakeups, std::string& reason);

/// Descriptor `fd` of process `pid`, if it is a file of that inode which holds `size_bytes` and
/// cannot shrink; else nothing, and why in `reason`, as a clause.
[[nodiscard]] Fd open_segment(int pid, int fd, std::uint64_t inode, std::uint64_t size_bytes,
                              std::string& reason);

/// The secret that shm proofs are made with.
[[nodiscard]] Secret shm_secret(const TransportContext& context);

}  // namespace chorus
