// The Program: a Schedule cut for one rank into lanes of instructions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "chorus/schedule.hpp"

namespace chorus {

/// Where a rank keeps chunks. In place, input and output are the same memory.
enum class Buffer : std::uint8_t { input, output, scratch };

/// A run of chunks in one of the rank's buffers, by index within that buffer. Input and output are
/// laid out as the collective says (contract.hpp); scratch has Program::scratch_chunks places.
struct LocalRange {
  Buffer buffer = Buffer::input;
  int index = 0;

  bool operator==(const LocalRange&) const = default;
};

/// One direction of a connection: a FIFO of messages to or from one peer.
struct Port {
  Rank peer = 0;
  int channel = 0;

  bool operator==(const Port&) const = default;
};

/// Something to fold: a range of this rank's own memory or the next message of a port.
struct Operand {
  int incoming = -1;  ///< index into Program::incoming, or -1: `local`
  LocalRange local = {};

  bool operator==(const Operand&) const = default;
};

/// "That instruction has written its destination and its messages no longer need their source."
struct Dependency {
  int lane = 0;
  int instruction = 0;

  bool operator==(const Dependency&) const = default;
};

/// Folds its sources from left to right, stores the result, sends it on. Covers what MSCCL XML
/// calls s, r, rcs, rrs, rrc, rrcs, cpy and re, and folds of more than two.
///
///   send                sources {local},            no destination, sends {port}
///   receive             sources {incoming},         destination
///   receive and forward sources {incoming},         destination,    sends {port, …}
///   receive and reduce  sources {local, incoming},  destination
///   local copy          sources {local},            destination
struct Instruction {
  ChunkId chunk = 0;  ///< first chunk; gives the lengths of all ranges and messages
  int count = 1;      ///< chunks [chunk, chunk + count), consecutive in every range too
  std::vector<Operand> sources;
  std::optional<LocalRange> destination;
  std::vector<int> sends;  ///< indices into Program::outgoing
  std::vector<Dependency> after;
  /// The fold completes a reduction: every contribution is in (ReduceOp::avg divides here).
  bool completes = false;
  int step = -1;  ///< of the schedule, at which its messages arrive or leave; -1: it has none

  bool operator==(const Instruction&) const = default;
};

/// Instructions that run in order. Lanes run independently but for `after`. Each port belongs to
/// exactly one lane, so messages of a port keep their order.
struct Lane {
  std::vector<Instruction> instructions;

  bool operator==(const Lane&) const = default;
};

/// What one rank does. The executor runs all lanes once per tile of the data (a tile is what lets
/// the longest message fit into one staging slot); lanes need not wait for each other between
/// tiles, and `after` speaks of the same tile: so tiles share no memory, scratch included. What
/// lower() makes needs 2 slots per port. The same Program drives the host and the CUDA executor.
struct Program {
  std::string name;
  Collective collective;
  int world_size = 0;
  Rank rank = 0;
  int num_chunks = 0;
  int scratch_chunks = 0;
  int num_channels = 0;  ///< ports use channels [0, num_channels)
  std::vector<Port> incoming;
  std::vector<Port> outgoing;
  std::vector<Lane> lanes;

  bool operator==(const Program&) const = default;
};

/// Fewest steps by which an instruction that is held_to_steps() may run ahead of the rest of its
/// program. Messages of the step before may still be under way: links stay busy.
inline constexpr int kLeastRunAhead = 1;

/// Whether an executor may hold `instruction` back until its rank has issued, of the same tile, all
/// that lies more than so many steps before it, kLeastRunAhead or more. first_fault() does so at
/// kLeastRunAhead: what can run then can run with more, and without.
///
/// True of what an all-reduce sends out of memory. The parts among it wait for no message, sums
/// wait for all of them. Left alone the parts of all chunks leave first and share every cable with
/// the few sums that are ready; at the end there are only sums, and the cables that carry none idle
/// (twelve hosts in a tree of switches, one of them slow: 1.55 s in place of 1.05).
[[nodiscard]] bool held_to_steps(const Program& program, const Instruction& instruction);

/// Whether `lane`, which is to issue instruction `next` of tile `lane_tile`, has yet to issue one
/// of `tile` whose step is less than `step`.
[[nodiscard]] bool is_behind(const Lane& lane, int lane_tile, int next, int tile, int step);

/// Most chunks of a message that `program` sends or receives (at least 1): what a slot must hold.
[[nodiscard]] int max_message_chunks(const Program& program);

/// Chunks of a message of the port of `program` whose messages are the shortest, in the mean (at
/// least 1).
[[nodiscard]] int shortest_mean_message_chunks(const Program& program);

/// Cuts `schedule` into one Program per rank, index = rank. The schedule must be correct.
[[nodiscard]] std::vector<Program> lower(const Schedule& schedule);

struct LoweredAlone {
  Program program;
  int longest_message = 1;  ///< chunks; the same for all ranks, and no message of any has more
};
/// The program of one rank alone, in memory and time that grow with the transfers that the schedule
/// names and those that the rank takes part in, not with all of a symmetric one. Chunks that follow
/// each other at both ends are one message; none is sent on by the instruction that receives it. So
/// the programs of all ranks fit together without a look at the others, and none can wait for
/// itself: of all that is left to do, what comes first by (step, sending before receiving, chunk)
/// can always be done, whatever the slots.
[[nodiscard]] LoweredAlone lower_alone(const Schedule& schedule, Rank rank);

/// The program of a rank that sends its input to `peer` in one message, or receives one into its
/// output. Whatever the rest of the group does, it fits the peer's program of the other direction.
[[nodiscard]] Program message_program(int world_size, Rank rank, Rank peer, bool sending);

/// Runs the programs of all ranks against each other on contribution counts, for `tiles` tiles,
/// with `slots` messages in flight per port at most. Returns the first fault as a sentence:
/// a deadlock (naming the ranks, lanes and instructions that wait for each other), a message that
/// nobody takes, a race between lanes, a result that breaks the contract.
/// `in_place` makes input and output the same memory, as the in-place form of the call would.
[[nodiscard]] std::optional<std::string> first_fault(std::span<const Program> programs, int slots,
                                                     bool in_place, int tiles = 2);

}  // namespace chorus
