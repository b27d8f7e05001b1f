// Programs as the interpreter reads them, and calls as they are cut for it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "chorus/types.hpp"
#include "device/layout.hpp"
#include "model/direct.hpp"
#include "model/program.hpp"

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

/// What of the programs of all ranks decides how a call is cut: alike on all of them.
struct Figures {
  std::uint32_t chunks_per_block = 1;
  std::uint32_t max_message_chunks = 1;
  std::uint32_t num_channels = 1;
  std::uint32_t max_lanes = 1;
  std::uint32_t max_lane_ports = 1;
  std::uint32_t scratch_chunks = 0;  ///< of this rank
};
[[nodiscard]] Figures figures_of(std::span<const Program> programs, Rank rank);

/// What all ranks agreed on for their communicator.
struct Limits {
  std::uint32_t blocks = 1;     ///< per rank and launch
  std::uint32_t instances = 1;  ///< copies of a program that take tiles in turn, at most
  /// Messages of at most so many bytes go by words, by lines.
  std::uint64_t words_bytes = 8 * 1024;
  std::uint64_t lines_bytes = 128 * 1024;
  /// Calls with a direct form and messages of at least so many bytes take it.
  std::uint64_t direct_bytes = 128 * 1024;
};

/// Sets protocol, tiles and instances of `call`, whose count and type are set, and scratch_stride;
/// returns the scratch bytes that it needs. `always_bulk`: messages may have no bytes and must be
/// waited for all the same. Throws InputError if a slot cannot hold one element of every chunk of a
/// message.
std::uint64_t cut(CallArguments& call, const Figures& figures, const Shape& shape,
                  const Limits& limits, bool always_bulk);

/// Instances of a program of these figures that blocks and connections have room for.
[[nodiscard]] std::uint32_t most_instances(const Figures& figures, const Shape& shape,
                                           const Limits& limits);

}  // namespace chorus::device
