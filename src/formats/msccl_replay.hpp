// Runs the programs of an MSCCL file against each other on contributions. For formats/ only.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "chorus/schedule.hpp"
#include "formats/fault.hpp"
#include "formats/msccl_program.hpp"

namespace chorus::formats {

struct StepRef {
  Rank rank = -1;
  int block = -1;
  int step = -1;
};

/// "file.xml:12: rank 0 threadblock 3 step 2 (rrc)".
[[nodiscard]] std::string describe(const MscclAlgo& algo, const StepRef& at,
                                   std::string_view where);

/// A FIFO from one threadblock to one of another rank.
struct Connection {
  Rank src = 0;
  Rank dst = 0;
  int channel = 0;
  int sender = -1;    ///< threadblock of src
  int receiver = -1;  ///< threadblock of dst
};

/// All connections of a file. Throws ProgramFault where the two ends do not agree: two threadblocks
/// share one, or the k-th send and the k-th receive differ in number or length.
[[nodiscard]] std::vector<Connection> connections(const MscclAlgo& algo, std::string_view where);

/// One chunk going from one rank to another.
struct Move {
  Rank src = 0;
  Rank dst = 0;
  ChunkId chunk = 0;
  int value = -1;    ///< what is sent, index into Trace::values
  int message = -1;  ///< index into Trace::messages
};

struct MessageEnds {
  StepRef sent;
  StepRef received;
  int received_at = -1;  ///< index of `received` in Trace::order
};

/// What a place of one rank's memory holds: a chunk, or a sum of contributions to one.
struct MscclValue {
  ChunkId chunk = 0;
  Rank rank = 0;              ///< that made it
  bool own = false;           ///< it contains what the rank began with
  std::vector<int> arrivals;  ///< and these moves, in the order of folding
};

struct Trace {
  std::vector<Move> moves;
  std::vector<MessageEnds> messages;
  std::vector<MscclValue> values;
  std::vector<std::vector<int>> outputs;  ///< [rank][output index]: value
  std::vector<StepRef> order;             ///< all steps, in an order in which they can run
};

/// How the programs are run.
struct ReplayOptions {
  bool in_place = false;  ///< input and output are one memory, as the collective lays them out
  int slots = 0;          ///< messages in flight per connection, or 0: any number
};

/// `outline` is the schedule to be, without steps. Throws InputError if the buffers do not fit the
/// collective, ProgramFault for a deadlock, a race, a value that makes no sense or a wrong result.
[[nodiscard]] Trace replay(const MscclAlgo& algo, const Schedule& outline,
                           const ReplayOptions& options, std::string_view where);

/// The threadblocks that cannot finish with `slots` messages in flight per connection.
[[nodiscard]] std::vector<StepRef> stuck(const MscclAlgo& algo, int slots);

}  // namespace chorus::formats
