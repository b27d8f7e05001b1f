// What an MSCCL XML file says, as data. For formats/ only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chorus/schedule.hpp"
#include "model/program/program.hpp"

namespace chorus::formats {

/// In the order of kStepTypes (msccl_program.cpp).
enum class StepType : std::uint8_t {
  send,
  receive,
  receive_copy_send,
  receive_reduce_send,
  receive_reduce_copy,
  receive_reduce_copy_send,
  copy,
  reduce,
  nop,
};

/// "s", "r", "rcs", …
[[nodiscard]] std::string_view name_of(StepType type);
/// What the type does: takes the next message, puts one, reads and writes this rank's memory.
[[nodiscard]] bool receives(StepType type);
[[nodiscard]] bool sends(StepType type);
[[nodiscard]] bool reads(StepType type);   ///< MscclStep::source
[[nodiscard]] bool writes(StepType type);  ///< MscclStep::destination
[[nodiscard]] bool reduces(StepType type);

struct MscclStep {
  int line = 0;
  StepType type = StepType::nop;
  LocalRange source = {};
  LocalRange destination = {};  ///< of a reduce: also its first operand
  int count = 0;
  int waits_block = -1;  ///< threadblock of the same rank, or -1
  int waits_step = -1;
  bool awaited = false;  ///< tells the other threadblocks when it is done (hasdep)
  int level = -1;        ///< Chorus's own: the step of the schedule, or -1

  bool operator==(const MscclStep&) const = default;
};

/// A threadblock: steps that run in order, with one peer each way.
struct MscclBlock {
  int line = 0;
  Rank send = -1;
  Rank receive = -1;
  int channel = 0;
  std::vector<MscclStep> steps = {};

  bool operator==(const MscclBlock&) const = default;
};

struct MscclGpu {
  int line = 0;
  int input_chunks = 0;
  int output_chunks = 0;
  int scratch_chunks = 0;
  std::vector<std::pair<int, int>> copies = {};  ///< input to output, before anything else
  std::vector<MscclBlock> blocks = {};           ///< index = id

  bool operator==(const MscclGpu&) const = default;
};

struct MscclAlgo {
  int line = 0;
  std::string name = {};
  std::string protocol = "Simple";
  std::string collective = {};  ///< as spelled in the file
  int channels = 1;
  int chunks = 0;  ///< nchunksperloop
  bool in_place = false;
  bool out_of_place = true;
  std::uint64_t min_bytes = 0;
  std::uint64_t max_bytes = 0;
  std::vector<MscclGpu> gpus = {};  ///< index = rank

  bool operator==(const MscclAlgo&) const = default;
};

/// Throws InputError "WHERE:LINE: …" for anything that is not in place by itself: syntax, unknown
/// elements, attributes and words, indices out of range, a threadblock's id out of order.
[[nodiscard]] MscclAlgo parse_msccl_xml(std::string_view text, std::string_view where);

[[nodiscard]] std::string write_msccl_xml(const MscclAlgo& algo);

}  // namespace chorus::formats
