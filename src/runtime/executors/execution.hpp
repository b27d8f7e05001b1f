// The host executor: runs one Program on one rank's buffers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "chorus/types.hpp"
#include "model/program/program.hpp"
#include "runtime/executors/ports.hpp"

namespace chorus {

struct DirectRoutine;

/// Chunks of the longest message of all ranks' programs together, and of the shortest: they decide
/// how the data is cut into tiles, which must be alike everywhere.
struct MessageLengths {
  int longest = 1;
  int shortest_mean = 1;
};

/// A Program made ready for this rank: derived figures that do not change from call to call.
struct Routine {
  Program program;
  /// By lane and instruction: how many of the lane's instructions must be done before the message
  /// that this one copies to its destination may be written there; -1 if it does anything else.
  std::vector<std::vector<int>> posted_after;
  int chunks_per_block = 1;
  MessageLengths lengths;
  int max_sends = 1;           ///< most Instruction::sends
  int steps = 0;               ///< of the schedule, as far as this rank takes part
  bool held_to_steps = false;  ///< some instruction is, more than kLeastRunAhead steps in
  std::uint32_t hash = 0;      ///< of the schedule: ranks that run different ones notice
  /// The same for ranks that share memory; null if the schedule needs messages, or the ranks do.
  std::shared_ptr<const DirectRoutine> direct = nullptr;
  /// What Link::divide() is to be told of the links to Program::outgoing while it runs; empty where
  /// nothing is to be said of any.
  std::vector<std::shared_ptr<const NetworkShares>> shares = {};
};
[[nodiscard]] std::shared_ptr<const Routine> make_routine(
    Program program, const MessageLengths& lengths, std::uint32_t hash,
    std::shared_ptr<const DirectRoutine> direct = nullptr,
    std::vector<std::shared_ptr<const NetworkShares>> shares = {});

/// What one call gives a Routine to work on.
struct Work {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::size_t count = 0;  ///< elements of one block
  DataType type = DataType::uint8;
  ReduceOp op = ReduceOp::sum;
  int divisor = 1;        ///< applied where a reduction completes
  std::uint32_t tag = 0;  ///< carried and expected by every message
  /// Most steps that what is held_to_steps() may run ahead, at least kLeastRunAhead.
  int run_ahead = std::numeric_limits<int>::max();
  int instances = 1;  ///< copies of the program that take tiles in turn
  /// The program's channel c of instance i is data channel first_channel + i·num_channels + c.
  int first_channel = 0;
};

/// Where an execution stands, for messages and the flight recorder.
struct Waiting {
  Rank peer = -1;  ///< -1: for nobody (its own lanes)
  int channel = 0;
  int instruction = 0;  ///< 1-based, of its lane
  int of = 0;           ///< instructions in that lane
  bool to_send = false;
};

/// One running call. Reusable: reset() prepares it for the next.
class Execution {
 public:
  /// Where ports are found: kept by the engine, one per (peer, data channel).
  struct Ports {
    virtual ~Ports() = default;
    virtual OutPort& out(Rank peer, int channel) = 0;
    virtual InPort& in(Rank peer, int channel) = 0;
  };

  void reset(std::shared_ptr<const Routine> routine, const Work& work, const SlotLayout& layout,
             Ports& ports);

  /// After reset(), when no other execution has messages to come on its ports.
  void begin();
  /// Runs every lane as far as it goes without waiting; true if anything moved. Sets mismatch() if
  /// a message carries another tag than this call's.
  bool step();
  [[nodiscard]] bool finished() const { return lanes_left_ == 0; }
  /// The peer whose message does not belong to this call, or -1.
  [[nodiscard]] Rank mismatch() const { return mismatch_; }
  [[nodiscard]] Waiting waiting() const;

  [[nodiscard]] std::span<Link* const> links() const { return links_; }
  [[nodiscard]] const Routine* routine() const { return routine_.get(); }
  [[nodiscard]] int num_tiles() const { return num_tiles_; }  ///< of the call

 private:
  // Issued instructions of one lane whose sources may still be read by links.
  static constexpr std::uint64_t kMaxPending = 8;

  // A lane's copy for one instance, working through tiles instance, instance + W, ….
  struct LaneState {
    const Lane* lane = nullptr;
    const std::vector<int>* posted_after = nullptr;  // Routine's, of this lane
    int instance = 0;
    int tile = 0;            // current tile
    int next = 0;            // instruction to issue next
    int sends_made = 0;      // of the folded instruction, messages already put
    bool folded = false;     // the current instruction is folded, sends remain
    bool in_window = false;  // the message lies in the first peer's slot already
    std::span<const std::byte> message;
    std::uint64_t issued = 0;    // instructions issued since the start, over all tiles
    std::uint64_t done = 0;      // of these, finished: destination written, sources free
    std::uint64_t foreseen = 0;  // whose receives may have been posted
    int foreseen_tile = 0;       // of instruction `foreseen`
    bool finished = false;
    // Port positions that instruction `issue` waits for: [issue mod kMaxPending][max_sends].
    std::vector<std::uint64_t> positions;
    std::vector<const Instruction*> pending;  // [kMaxPending]
    // Messages that lie nowhere else, by instruction as `pending`: the next one shall not wait
    // until a link has let go of the last.
    std::array<std::vector<std::byte>, kMaxPending> staging;
  };

  void choose_tiles();
  void connect_ports(Ports& ports);
  bool advance(LaneState& state);
  [[nodiscard]] bool ready(LaneState& state, const Instruction& instruction);
  void fold_message(LaneState& state, const Instruction& instruction);
  void fold_pieces(LaneState& state, const Instruction& instruction, std::byte* message,
                   bool whole);
  [[nodiscard]] bool send_message(LaneState& state, const Instruction& instruction);
  void retire(LaneState& state);
  void foresee(LaneState& state);
  [[nodiscard]] bool may_post(LaneState& state, const Instruction& instruction, int posted_after);
  /// False while `instruction` would run ahead (held_to_steps).
  [[nodiscard]] bool may_leave(const LaneState& state, const Instruction& instruction) const;
  [[nodiscard]] bool after_met(LaneState& state, const Instruction& instruction, int tile);
  [[nodiscard]] bool in_place(const LaneState& state, const Instruction& instruction) const;

  [[nodiscard]] std::size_t tile_elements(int tile) const;
  [[nodiscard]] std::size_t chunk_elements(ChunkId chunk, int tile) const;
  [[nodiscard]] std::size_t message_elements(const Instruction& instruction, int tile) const;
  [[nodiscard]] std::byte* at(const LocalRange& range, int shift, int tile) const;
  [[nodiscard]] bool contiguous(const LocalRange& range, int count) const;
  [[nodiscard]] OutPort& out(const LaneState& state, int index) const {
    return *outs_[static_cast<std::size_t>(state.instance) * routine_->program.outgoing.size() +
                  static_cast<std::size_t>(index)];
  }
  [[nodiscard]] InPort& in(const LaneState& state, int index) const {
    return *ins_[static_cast<std::size_t>(state.instance) * routine_->program.incoming.size() +
                 static_cast<std::size_t>(index)];
  }

  std::shared_ptr<const Routine> routine_;
  Work work_;
  SlotLayout layout_;
  std::size_t element_bytes_ = 1;
  std::size_t tile_count_ = 0;  ///< elements of one block per tile
  int num_tiles_ = 1;
  std::size_t scratch_stride_ = 0;  ///< elements of one scratch place
  std::vector<std::byte> scratch_;
  std::vector<OutPort*> outs_;
  std::vector<InPort*> ins_;
  std::vector<Link*> links_;
  std::vector<LaneState> lanes_;  // [instances · lanes]
  std::size_t num_lanes_ = 0;     // in use, at most lanes_.size(): kept for their memory
  std::size_t lanes_left_ = 0;
  bool may_post_ = false;  // messages are large enough, and some link can
  Rank mismatch_ = -1;
};

}  // namespace chorus
