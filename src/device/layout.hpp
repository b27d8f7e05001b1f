// What host and device agree on: arenas, images, the arguments of a launch. Plain data without
// pointers of C++ types; the same bytes under both compilers (layout_hash() is compared when the
// kernels are loaded).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/hash.hpp"
#include "chorus/types.hpp"
#include "device/portable.hpp"

namespace chorus::device {

/// How a message lies in a slot.
///
///   words  8 bytes: 4 of data, 4 of flag; one access, so who sees the flag sees the data. Half
///          the bandwidth, one way of latency.
///   bulk   data alone; a counter beside the slots, stored with release and loaded with acquire.
///   mixed  of a call: words between ranks that reach each other's memory, bulk between others,
///          whose links would tear words from their flags.
enum class Protocol : std::uint8_t { words, bulk, mixed };
inline constexpr std::uint32_t kNumProtocols = 2;  ///< of slots: words and bulk

inline constexpr std::uint32_t kMostSlots = 4;
inline constexpr std::uint32_t kLineBytes = 128;
inline constexpr std::uint32_t kMostRanks = 1024;      ///< of one communicator
inline constexpr std::uint32_t kMostOperands = 128;    ///< of one fold: sources, and targets
inline constexpr std::uint32_t kMostWorks = 64;        ///< lanes that one block takes in turn
inline constexpr std::uint32_t kMostPorts = 384;       ///< of these lanes together
inline constexpr std::uint32_t kProgressSlots = 4096;  ///< lanes of one phase
inline constexpr std::uint32_t kFewCalls = 4;          ///< fit into 1 KiB of kernel arguments
inline constexpr std::uint32_t kManyCalls = 200;       ///< into 32,764 bytes
inline constexpr std::uint32_t kThreads = 512;         ///< per block
/// What a full block folds between two looks at its loop: four 16-byte units per thread
/// (fold_wide()). Chunks of long messages are multiples of it.
inline constexpr std::uint32_t kRoundBytes = kThreads * 4 * 16;

/// Sizes that all ranks of a communicator share.
struct Shape {
  std::uint32_t ranks;
  std::uint32_t connections;                ///< from each rank to each other
  std::uint32_t word_connections;           ///< the first so many of them have slots for words
  std::uint32_t slots;                      ///< of each connection and protocol
  std::uint32_t slot_bytes[kNumProtocols];  ///< of one slot, flags included; multiples of 128
};

/// One connection and protocol, seen from the rank whose arena it lies in, towards one peer.
struct alignas(128) Ring {
  /// By the peer, bulk: tag << 32 | number (low 32 bits) of the message in each slot.
  std::uint64_t arrived[kMostSlots];
  std::uint64_t bytes[kMostSlots];  ///< of these messages; by a peer that is relayed, else unset
  std::uint64_t credit;             ///< by the peer: messages from here that it has taken
  std::uint64_t sent;               ///< own: messages sent to the peer
  std::uint64_t taken;              ///< own: messages taken from the peer
};

/// "My buffers are ready for direct call `number`", written by a peer.
struct alignas(128) Offer {
  std::uint64_t number;  ///< + 1; stored last, with release
  std::uint64_t input;   ///< addresses, as who reads the offer reaches them
  std::uint64_t output;
  double scale;
  std::uint32_t input_segment;  ///< kNotExposed: who reads the offer does not reach it
  std::uint32_t output_segment;
  std::uint32_t tag;
  std::uint32_t unused[21];
};
inline constexpr std::uint32_t kNotExposed = 0xffffffff;
/// Blocks of one rank's memory that the other ranks have mapped.
inline constexpr std::uint32_t kMostSegments = 64;

/// The beginning of an arena.
struct ArenaHead {
  alignas(128) std::uint64_t poison;      ///< by a peer whose kernel failed: its rank + 1
  alignas(128) std::uint64_t failed;      ///< own: a block has failed, all end
  alignas(128) std::uint64_t launch;      ///< own: launches so far
  std::uint64_t direct_calls;             ///< own: offers made so far
  alignas(128) std::uint64_t arrivals;    ///< own: of this launch's blocks at its barriers
  alignas(128) std::uint64_t moved;       ///< own: the same, having done their direct moves
  alignas(128) std::uint64_t departures;  ///< own: the same, having ended
};

/// What one rank writes for one other: the rings and slots of their connections. It lies in the
/// reader's arena or, where the writer cannot reach that, in a copy of it in pinned memory
/// (runtime/gpu/relay.hpp). Offsets in bytes from its beginning.
struct Box {
  CHORUS_INLINE static std::uint64_t ring(const Shape&, std::uint32_t connection,
                                          Protocol protocol) {
    return (std::uint64_t{connection} * kNumProtocols + static_cast<std::uint32_t>(protocol)) *
           sizeof(Ring);
  }
  CHORUS_INLINE static std::uint64_t all_slots(const Shape& s) {
    return round_up(ring(s, s.connections, {}), 4096);
  }
  /// Slots of all connections, those of words first.
  CHORUS_INLINE static std::uint64_t slots_of(const Shape& s, Protocol protocol) {
    const std::uint64_t connections =
        protocol == Protocol::words ? s.word_connections : s.connections;
    return connections * s.slots * s.slot_bytes[static_cast<std::uint32_t>(protocol)];
  }
  /// Of message `position`, from 0.
  CHORUS_INLINE static std::uint64_t slot(const Shape& s, std::uint32_t connection,
                                          Protocol protocol, std::uint64_t position) {
    const std::uint64_t first =
        all_slots(s) + (protocol == Protocol::words ? 0 : slots_of(s, Protocol::words));
    return first + (std::uint64_t{connection} * s.slots + position % s.slots) *
                       s.slot_bytes[static_cast<std::uint32_t>(protocol)];
  }
  CHORUS_INLINE static std::uint64_t size(const Shape& s) {
    return round_up(all_slots(s) + slots_of(s, Protocol::words) + slots_of(s, Protocol::bulk),
                    4096);
  }
};

/// Where things lie in an arena, in bytes from its beginning.
struct Arena {
  CHORUS_INLINE static std::uint64_t offers(const Shape&) { return 4096; }
  CHORUS_INLINE static std::uint64_t offer(const Shape& s, std::uint64_t number,
                                           std::uint32_t peer) {
    return offers(s) + ((number & 1) * s.ranks + peer) * sizeof(Offer);
  }
  /// Direct calls that the peer has done.
  CHORUS_INLINE static std::uint64_t done(const Shape& s, std::uint32_t peer) {
    return offers(s) + 2 * s.ranks * sizeof(Offer) + std::uint64_t{peer} * 128;
  }
  /// Of each lane of the phase under way: instructions done, stamped with launch and phase.
  CHORUS_INLINE static std::uint64_t progress(const Shape& s) { return done(s, s.ranks); }
  /// What `peer` sends.
  CHORUS_INLINE static std::uint64_t box(const Shape& s, std::uint32_t peer) {
    return round_up(progress(s) + kProgressSlots * sizeof(std::uint64_t), 4096) +
           peer * Box::size(s);
  }
  CHORUS_INLINE static std::uint64_t size(const Shape& s) { return box(s, s.ranks); }
};

// Images: a Program (model/program/program.hpp) or a DirectProgram as 32-bit words
// ------------------------ An image begins with ImageHead; offsets count words from its beginning.

struct ImageHead {
  std::uint32_t words;  ///< of the whole image
  std::uint32_t num_chunks;
  std::uint32_t chunks_per_block;
  std::uint32_t num_channels;
  std::uint32_t num_lanes;
  std::uint32_t lanes;     ///< offset of ImageLane[num_lanes]
  std::uint32_t in_ports;  ///< offset of ImagePort[]
  std::uint32_t out_ports;
  std::uint32_t num_moves;  ///< direct images
  std::uint32_t moves;      ///< offset of ImageMove[num_moves]
};
struct ImagePort {
  std::uint32_t peer;
  std::uint32_t channel;
};
struct ImageLane {
  std::uint32_t instructions;  ///< offset of the first; each says where the next one is
  std::uint32_t num_instructions;
  std::uint32_t first_in;  ///< ports of a lane are consecutive
  std::uint32_t num_in;
  std::uint32_t first_out;
  std::uint32_t num_out;
  std::uint32_t is_awaited;  ///< some other lane's instruction comes after one of its
};
inline constexpr std::uint32_t kLocal = 0xffffffff;  ///< ImageOperand::port of local memory
struct ImageOperand {
  std::uint32_t port;  ///< of the lane, or kLocal
  std::uint32_t buffer;
  std::uint32_t index;
};
struct ImageDependency {
  std::uint32_t lane;
  std::uint32_t instruction;
};
/// Followed by ImageOperand[num_sources], ImageDependency[num_after], sends [num_sends] (out ports
/// of the lane).
struct ImageInstruction {
  std::uint32_t words;  ///< to the next instruction
  std::uint32_t chunk;
  std::uint32_t count;
  std::uint32_t num_sources;
  std::uint32_t num_after;
  std::uint32_t num_sends;
  std::uint32_t has_destination;
  std::uint32_t buffer;  ///< of the destination
  std::uint32_t index;
  std::uint32_t completes;
};
/// Followed by {rank, index}[num_sources + num_destinations].
struct ImageMove {
  std::uint32_t words;
  std::uint32_t chunk;
  std::uint32_t count;
  std::uint32_t num_sources;
  std::uint32_t num_destinations;
};
struct ImagePlace {
  std::uint32_t rank;
  std::uint32_t index;
};

// Launches ---------------------------------------------------------------------------------------

/// One call. Addresses are of the device.
struct CallArguments {
  std::uint64_t program;  ///< image
  std::uint64_t direct;   ///< image, or 0: messages only
  std::uint64_t input;
  std::uint64_t output;
  std::uint64_t scratch;
  std::uint64_t count;           ///< elements of one block
  std::uint64_t tile_count;      ///< of these, per tile
  std::uint64_t scratch_stride;  ///< elements of one chunk place, over all tiles
  double scale;
  std::uint64_t scale_at;  ///< one element; 0: `scale`
  std::uint32_t num_tiles;
  std::uint32_t instances;
  std::uint32_t first_connection;
  std::uint32_t tag;
  std::uint32_t divisor;
  std::uint32_t sequence;    ///< for messages to people
  std::uint32_t phase;       ///< calls of one phase run at once, phases one after another
  std::uint32_t first_work;  ///< works of this phase before it
  std::uint32_t next;  ///< call that its lanes go on with (the next message to a peer); or kLocal
  /// 0: ranks are threads, to whom the address is the same; else of RankTable::segments, 1-based;
  /// kNotExposed: others do not reach it.
  std::uint32_t input_segment;
  std::uint32_t output_segment;
  DataType type;
  ReduceOp op;
  Protocol protocol;
  std::uint8_t follows;  ///< some other call's `next` is this one
};

struct LaunchHead {
  std::uint64_t table;  ///< RankTable
  std::uint64_t timeout_ns;
  std::uint32_t num_calls;
  std::uint32_t num_phases;
};
template <std::uint32_t kCalls>
struct Launch {
  LaunchHead head;
  CallArguments calls[kCalls];
};
using FewCalls = Launch<kFewCalls>;
using ManyCalls = Launch<kManyCalls>;
static_assert(sizeof(FewCalls) <= 1024 && sizeof(ManyCalls) <= 32764);

enum class Failure : std::uint32_t { none, aborted, timeout, mismatch, poisoned };

/// In host memory that the device reaches.
struct HostStatus {
  alignas(128) std::uint64_t abort;    ///< by the host: kernels end
  alignas(128) std::uint64_t failure;  ///< Failure, stored last
  std::uint64_t sequence;              ///< of the call that failed
  std::uint64_t peer;                  ///< it waited for, or kLocal
  std::uint64_t lane;
  std::uint64_t instruction;
  std::uint64_t tile;
  /// Sequence of the first call of the last phase begun; the same, of the last launch ended. They
  /// differ while one is under way.
  alignas(128) std::uint64_t begun;
  std::uint64_t ended;
};

/// What a rank's kernels know beforehand; in device memory.
struct RankTable {
  Shape shape;
  std::uint32_t rank;
  /// Ranks are on several GPUs or in several processes: what they tell each other must be seen
  /// beyond this one's.
  std::uint32_t beyond_device;
  std::uint64_t status;                ///< HostStatus
  std::uint64_t arenas[kMostRanks];    ///< as this rank reaches them; 0: it cannot, see relays
  std::uint64_t incoming[kMostRanks];  ///< boxes, by who writes into them
  std::uint64_t outgoing[kMostRanks];  ///< boxes, by who reads from them
  /// Boxes whose slots, and nothing else, are used in place of those of the boxes above: the same
  /// ones, but where an adapter reaches the slots in GPU memory and the host the rings in its own.
  std::uint64_t incoming_slots[kMostRanks];
  std::uint64_t outgoing_slots[kMostRanks];
  /// [(segment − 1) · ranks + peer]: where `peer` reaches a block of this rank's memory. Written
  /// before the first launch whose arguments name the segment.
  std::uint64_t segments[1];
};
CHORUS_INLINE constexpr std::uint64_t table_bytes(std::uint32_t ranks) {
  return sizeof(RankTable) + std::uint64_t{ranks} * kMostSegments * sizeof(std::uint64_t);
}

/// A change of any of the above changes it (but not each change: it sees sizes and offsets).
constexpr std::uint64_t layout_hash() {
  const std::uint64_t figures[] = {8,  // raise it when meanings change
                                   sizeof(Shape),
                                   sizeof(Ring),
                                   sizeof(Offer),
                                   offsetof(Offer, scale),
                                   offsetof(Offer, tag),
                                   sizeof(ArenaHead),
                                   offsetof(ArenaHead, failed),
                                   offsetof(ArenaHead, departures),
                                   sizeof(ImageHead),
                                   sizeof(ImagePort),
                                   sizeof(ImageLane),
                                   sizeof(ImageOperand),
                                   sizeof(ImageInstruction),
                                   offsetof(ImageInstruction, completes),
                                   sizeof(ImageMove),
                                   sizeof(CallArguments),
                                   offsetof(CallArguments, scale),
                                   offsetof(CallArguments, phase),
                                   offsetof(CallArguments, type),
                                   offsetof(CallArguments, follows),
                                   sizeof(LaunchHead),
                                   offsetof(FewCalls, calls),
                                   sizeof(HostStatus),
                                   offsetof(HostStatus, failure),
                                   offsetof(HostStatus, ended),
                                   sizeof(RankTable),
                                   offsetof(RankTable, arenas),
                                   offsetof(RankTable, outgoing),
                                   offsetof(RankTable, outgoing_slots),
                                   kNumDataTypes,
                                   kNumReduceOps,
                                   kThreads,
                                   kMostWorks,
                                   kMostPorts,
                                   kProgressSlots,
                                   kMostSegments};
  Fnv1a hash;
  for (const std::uint64_t figure : figures) hash.word(figure);
  return hash.value();
}

}  // namespace chorus::device
