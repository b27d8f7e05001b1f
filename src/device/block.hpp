// What the threads of one block share while they interpret a launch.
#pragma once

#include <cstdint>

#include "device/layout.hpp"

namespace chorus::device {

/// One operand of a fold.
struct Source {
  std::uint64_t at;      ///< address: of the data, or of a slot of words
  double scale;          ///< local data is multiplied by it, where `is_scaled`
  std::uint32_t flag;    ///< of the message, where `is_wire`
  std::uint32_t peer;    ///< who sends it, where `is_wire`
  std::uint8_t is_wire;  ///< words
  std::uint8_t is_scaled;
};
/// A slot of words at a peer.
struct Wire {
  std::uint64_t at;
  std::uint32_t flag;
};

/// Folds `bytes` from `sources`, from left to right, into all targets and wires.
struct FoldJob {
  std::uint64_t bytes;
  std::uint32_t num_sources;
  std::uint32_t num_targets;
  std::uint32_t num_wires;
  std::uint32_t divisor;
  Protocol protocol;
  Source sources[kMostOperands];
  std::uint64_t targets[kMostOperands];
  Wire wires[kMostOperands];
};

/// A lane of a call's instance, as far as it has come.
struct Work {
  std::uint32_t call;
  std::uint32_t lane;
  std::uint32_t instance;
  std::uint32_t tile;
  std::uint32_t next;         ///< instruction
  std::uint32_t instruction;  ///< its offset in the image
  std::uint32_t done;         ///< instructions, over all tiles
  std::uint32_t first_port;   ///< into BlockShared::ports: the lane's incoming ones, then outgoing
  std::uint32_t running;
};

struct PortState {
  std::uint64_t position;  ///< messages sent or taken
  std::uint64_t credit;    ///< outgoing: known to be taken by the peer
};

/// Words of an image that are kept here, so that interpreting it costs no way to memory.
inline constexpr std::uint32_t kCachedWords = 3072;

struct BlockShared {
  FoldJob job;
  Work works[kMostWorks];
  PortState ports[kMostPorts];
  std::uint32_t image[kCachedWords];
  std::uint64_t cached;  ///< address of the image in `image`, or 0
  std::uint32_t verdict;
};

}  // namespace chorus::device
