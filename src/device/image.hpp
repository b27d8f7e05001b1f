// Programs as the interpreter reads them, and calls as they are cut for it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "chorus/types.hpp"
#include "device/layout.hpp"
#include "model/program/direct.hpp"
#include "model/program/program.hpp"

namespace chorus::device {

/// A program in words (layout.hpp). Without addresses: it may lie anywhere in memory.
struct Image {
  std::vector<std::uint32_t> words;

  [[nodiscard]] const ImageHead& head() const {
    return *reinterpret_cast<const ImageHead*>(words.data());
  }
};

/// Checks every index of `program` as it writes it. Throws InputError naming what is out of range
/// or more than the interpreter has room for.
[[nodiscard]] Image flatten(const Program& program);
[[nodiscard]] Image flatten(const DirectProgram& program);

/// Whether no instruction, or move, has more operands than a kernel has room for (kMostOperands).
/// On so many ranks none does.
[[nodiscard]] bool has_room_for_operands(std::span<const Program> programs);
[[nodiscard]] bool has_room_for_operands(std::span<const DirectProgram> programs);

/// Ports of each lane.
[[nodiscard]] std::vector<std::uint32_t> lane_ports(const Image& image);
/// Lanes of calls that run at once, as blocks take them in turn.
struct Placement {
  std::uint32_t first_work = 0;
  std::uint32_t instances = 1;
  std::span<const std::uint32_t> ports;  ///< of each lane
};
/// Whether each of `blocks` blocks has room for the lanes and ports that fall to it.
[[nodiscard]] bool have_room(std::span<const Placement> calls, std::uint32_t blocks);

/// What of the programs of all ranks decides how a call is cut: alike on all of them.
struct Figures {
  std::uint32_t chunks_per_block = 1;
  std::uint32_t max_message_chunks = 1;
  std::uint32_t num_channels = 1;
  std::uint32_t max_lanes = 1;
  std::uint32_t max_ports = 1;       ///< of one program
  std::uint32_t max_lane_ports = 1;  ///< of one lane
  std::uint32_t scratch_chunks = 0;  ///< of this rank
};
[[nodiscard]] Figures figures_of(std::span<const Program> programs, Rank rank);

/// The shape of a communicator of `ranks` ranks whose launches have `blocks` blocks at most. 0
/// blocks: messages go through a thread that looks at every connection. `slot_bytes`: as much as a
/// slot shall have at most.
[[nodiscard]] Shape shape_for(std::size_t ranks, std::size_t slot_bytes, std::uint32_t blocks);

/// What all ranks agreed on for their communicator.
struct Limits {
  std::uint32_t blocks = 1;  ///< per rank and launch
  /// Copies of a program that take tiles in turn, at most; 0: one for each block.
  std::uint32_t instances = 0;
  /// Messages of at most so many bytes go by words.
  std::uint64_t words_bytes = 8 * 1024;
  /// Calls with a direct form and messages of at least so many bytes take it.
  std::uint64_t direct_bytes = 128 * 1024;
  /// Some pairs of ranks do not reach each other: calls by words go by bulk between these.
  bool relays = false;
};

/// Sets protocol, tiles and instances of `call`, whose count and type are set, and scratch_stride;
/// returns the scratch bytes that it needs. `always_bulk`: messages may have no bytes and must be
/// waited for all the same. Throws InputError if a slot cannot hold one element of every chunk of a
/// message.
std::uint64_t cut(CallArguments& call, const Figures& figures, const Shape& shape,
                  const Limits& limits, bool always_bulk);

/// Instances of a program of these figures that blocks and connections have room for. One for each
/// block if possible: then every block has a share of each lane, of the folds above all.
[[nodiscard]] std::uint32_t most_instances(const Figures& figures, const Shape& shape,
                                           const Limits& limits, Protocol protocol);

}  // namespace chorus::device
