#include "runtime/executors/execution.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/check.hpp"
#include "base/copy.hpp"
#include "base/multiples.hpp"
#include "chorus/error.hpp"
#include "collectives/reduce.hpp"
#include "model/schedule/contract.hpp"

namespace chorus {
namespace {

constexpr std::size_t kTileAlignment = 64;  // a cache line: tiles begin on one where they can

/// Messages below this part of a slot are copied out of it: it costs less than to foresee them.
constexpr std::size_t kPostedPart = 8;

/// Of a message of a schedule that is a pipeline, and from how many chunks on it is one.
constexpr std::size_t kWorthAMessage = 64 * 1024;
constexpr std::size_t kManyChunks = 16;

/// A block of this size is gone from the second-level cache before anybody reads it.
constexpr std::size_t kStreamedBlock = 4 * 1024 * 1024;

/// Routine::landing_after of one lane. What touches the same memory has a chunk in common.
std::vector<int> posted_after(const Lane& lane) {
  std::vector<int> result;
  std::unordered_map<ChunkId, int> last;  // 1 + who touched it; of all_to_all there are n² chunks
  for (const Instruction& instruction : lane.instructions) {
    const bool copies = instruction.destination && instruction.sources.size() == 1 &&
                        instruction.sources.front().incoming >= 0;
    int after = 0;
    for (ChunkId c = instruction.chunk; c < instruction.chunk + instruction.count; ++c) {
      after = std::max(after, std::exchange(last[c], static_cast<int>(result.size()) + 1));
    }
    result.push_back(copies ? after : -1);
  }
  return result;
}

}  // namespace

std::shared_ptr<const Routine> make_routine(
    Program program, const MessageLengths& lengths, std::uint32_t hash,
    std::shared_ptr<const DirectRoutine> direct,
    std::vector<std::shared_ptr<const NetworkShares>> shares) {
  auto routine = std::make_shared<Routine>();
  routine->lengths = lengths;
  routine->chunks_per_block =
      program.num_chunks / num_blocks(program.collective.kind, program.world_size);
  for (const Lane& lane : program.lanes) {
    routine->posted_after.push_back(posted_after(lane));
    for (const Instruction& instruction : lane.instructions) {
      routine->max_sends = std::max(routine->max_sends, static_cast<int>(instruction.sends.size()));
      routine->steps = std::max(routine->steps, instruction.step + 1);
      routine->held_to_steps = routine->held_to_steps || (instruction.step > kLeastRunAhead &&
                                                          held_to_steps(program, instruction));
    }
  }
  routine->hash = hash;
  routine->direct = std::move(direct);
  routine->shares = std::move(shares);
  routine->program = std::move(program);
  return routine;
}

void Execution::reset(std::shared_ptr<const Routine> routine, const Work& work,
                      const SlotLayout& layout, Ports& ports) {
  const bool same = routine == routine_ && work.instances == work_.instances &&
                    work.first_channel == work_.first_channel;
  const bool same_tiles = same && work.count == work_.count && work.type == work_.type;
  routine_ = std::move(routine);
  work_ = work;
  layout_ = layout;
  mismatch_ = -1;
  if (!same_tiles) {
    element_bytes_ = size_of(work.type);
    choose_tiles();
  }

  const Program& program = routine_->program;
  if (!same) connect_ports(ports);
  const std::size_t scratch_bytes =
      static_cast<std::size_t>(program.scratch_chunks) * scratch_stride_ * element_bytes_;
  if (scratch_.size() < scratch_bytes) scratch_.resize(scratch_bytes);

  num_lanes_ = static_cast<std::size_t>(work.instances) * program.lanes.size();
  if (lanes_.size() < num_lanes_) lanes_.resize(num_lanes_);
  lanes_left_ = 0;
  for (std::size_t i = 0; i < num_lanes_; ++i) {
    LaneState& state = lanes_[i];
    state.lane = &program.lanes[i % program.lanes.size()];
    state.posted_after = &routine_->posted_after[i % program.lanes.size()];
    state.instance = static_cast<int>(i / program.lanes.size());
    state.tile = state.instance;
    state.next = 0;
    state.sends_made = 0;
    state.folded = false;
    state.issued = state.done = state.foreseen = 0;
    state.foreseen_tile = state.tile;
    state.finished = state.lane->instructions.empty() || state.tile >= num_tiles_;
    if (!state.finished) ++lanes_left_;
    state.positions.resize(kMaxPending * static_cast<std::size_t>(routine_->max_sends));
    state.pending.resize(kMaxPending);
  }
}

// The longest message must fit into a slot. A schedule of many chunks is meant as a pipeline of
// them: where several go in one message, tiles are to be as small as they would be alone, as long
// as no message gets smaller than what it costs to send one. Tiles of about equal size, cut at
// cache lines.
void Execution::choose_tiles() {
  const auto k = static_cast<std::size_t>(routine_->chunks_per_block);
  const auto m = static_cast<std::size_t>(routine_->lengths.longest);
  std::size_t message_bytes = layout_.slot_bytes;
  if (m >= kManyChunks) {
    const std::size_t least =
        kWorthAMessage * m / static_cast<std::size_t>(routine_->lengths.shortest_mean);
    const std::size_t chunk_bytes = divide_up(work_.count, k) * element_bytes_;
    message_bytes = std::min(message_bytes, std::max({least, chunk_bytes, m * kTileAlignment}));
  }
  const std::size_t slot_elements = message_bytes / (m * element_bytes_);
  if (divide_up(work_.count, k) <= slot_elements) {
    tile_count_ = work_.count;
    num_tiles_ = 1;
  } else {
    const std::size_t line = std::max<std::size_t>(1, kTileAlignment / element_bytes_);
    const std::size_t step = slot_elements >= line ? line : 1;
    const std::size_t most = slot_elements / step * step * k;
    if (most == 0) {
      throw InputError(
          fmt::format("slots of {} bytes cannot hold a message of {} chunks of schedule '{}': set "
                      "CHORUS_SLOT_BYTES to at least {}",
                      layout_.slot_bytes, m, routine_->program.name, m * element_bytes_));
    }
    const std::size_t tiles = divide_up(work_.count, most);
    tile_count_ = divide_up(divide_up(work_.count, tiles), step * k) * step * k;
    num_tiles_ = static_cast<int>(divide_up(work_.count, tile_count_));
  }
  scratch_stride_ = divide_up(tile_count_, k) * static_cast<std::size_t>(num_tiles_);
}

void Execution::connect_ports(Ports& ports) {
  const Program& program = routine_->program;
  outs_.clear();
  ins_.clear();
  links_.clear();
  for (int i = 0; i < work_.instances; ++i) {
    const int first = work_.first_channel + i * program.num_channels;
    for (const Port& port : program.outgoing) {
      outs_.push_back(&ports.out(port.peer, first + port.channel));
      links_.push_back(outs_.back()->link);
    }
    for (const Port& port : program.incoming) {
      ins_.push_back(&ports.in(port.peer, first + port.channel));
      links_.push_back(ins_.back()->link);
    }
  }
  std::sort(links_.begin(), links_.end());
  links_.erase(std::unique(links_.begin(), links_.end()), links_.end());
}

void Execution::begin() {
  for (std::size_t i = 0; i < outs_.size() && !routine_->shares.empty(); ++i) {
    outs_[i]->link->divide(routine_->shares[i % routine_->shares.size()]);
  }
  const auto k = static_cast<std::size_t>(routine_->chunks_per_block);
  const auto m = static_cast<std::size_t>(routine_->lengths.longest);
  const bool large =
      divide_up(tile_count_, k) * m * element_bytes_ >= layout_.slot_bytes / kPostedPart;
  may_post_ = large && std::any_of(ins_.begin(), ins_.end(), [](const InPort* port) {
                return port->posted_receives != nullptr;
              });
  if (!may_post_) return;
  for (InPort* port : ins_) port->foreseen = port->taken;
  for (std::size_t i = 0; i < num_lanes_; ++i) foresee(lanes_[i]);
}

bool Execution::step() {
  bool moved = false;
  for (std::size_t i = 0; i < num_lanes_; ++i) {
    LaneState& state = lanes_[i];
    if (state.finished) continue;
    while (advance(state)) {
      moved = true;
      if (state.finished || mismatch_ >= 0) break;
    }
    if (mismatch_ >= 0) return moved;
  }
  for (std::size_t i = 0; may_post_ && i < num_lanes_; ++i) {
    if (!lanes_[i].finished) foresee(lanes_[i]);
  }
  return moved;
}

// Tells the links where the messages to come belong, as far ahead as slots go, so that they need no
// copy out of them.
void Execution::foresee(LaneState& state) {
  const auto& instructions = state.lane->instructions;
  for (; state.foreseen_tile < num_tiles_; ++state.foreseen) {
    const std::size_t i = state.foreseen % instructions.size();
    const Instruction& instruction = instructions[i];
    const bool to_come = state.foreseen >= state.issued + (state.folded ? 1 : 0);
    if (to_come && !may_post(state, instruction, (*state.posted_after)[i])) return;
    for (const Operand& source : instruction.sources) {
      if (source.incoming < 0) continue;
      InPort& port = in(state, source.incoming);
      const std::size_t bytes = message_elements(instruction, state.foreseen_tile) * element_bytes_;
      if (to_come && (*state.posted_after)[i] >= 0 && port.posted_receives != nullptr &&
          bytes >= layout_.slot_bytes / kPostedPart &&
          contiguous(*instruction.destination, instruction.count)) {
        port.expect(layout_, {at(*instruction.destination, 0, state.foreseen_tile), bytes},
                    work_.tag);
      }
      ++port.foreseen;
    }
    if (i + 1 == instructions.size()) state.foreseen_tile += work_.instances;
  }
}

// Whether what `instruction`, number state.foreseen of the lane, receives may be written to its
// destination already, and what comes behind it may be thought of.
bool Execution::may_post(LaneState& state, const Instruction& instruction, int posted_after) {
  for (const Operand& source : instruction.sources) {
    if (source.incoming < 0) continue;
    const InPort& port = in(state, source.incoming);
    if (port.foreseen - port.taken >= static_cast<std::uint64_t>(layout_.slots)) return false;
  }
  const std::size_t length = state.lane->instructions.size();
  if (posted_after > 0 &&
      state.done < state.foreseen / length * length + static_cast<std::uint64_t>(posted_after)) {
    return false;
  }
  return after_met(state, instruction, state.foreseen_tile);
}

bool Execution::in_place(const LaneState& state, const Instruction& instruction) const {
  if (!may_post_ || !instruction.destination || instruction.sources.size() != 1) return false;
  const int port = instruction.sources.front().incoming;
  return port >= 0 && in(state, port).in_place();
}

// Takes the lane one instruction further; false if it has to wait.
bool Execution::advance(LaneState& state) {
  retire(state);
  const auto& instructions = state.lane->instructions;
  if (state.tile >= num_tiles_) {  // all issued; wait for the links to let go of the sources
    if (state.done < state.issued) return false;
    state.finished = true;
    --lanes_left_;
    return true;
  }
  const Instruction& instruction = instructions[static_cast<std::size_t>(state.next)];
  if (!state.folded) {
    if (!ready(state, instruction)) return false;
    fold_message(state, instruction);
    state.folded = true;
    state.sends_made = 0;
  }
  if (!send_message(state, instruction)) return false;
  state.folded = false;
  state.pending[state.issued % kMaxPending] = &instruction;
  ++state.issued;
  if (static_cast<std::size_t>(++state.next) == instructions.size()) {
    state.next = 0;
    state.tile += work_.instances;
  }
  retire(state);
  return true;
}

// Counts instructions as done, in order, whose messages no longer need their source.
void Execution::retire(LaneState& state) {
  while (state.done < state.issued) {
    const std::size_t slot = state.done % kMaxPending;
    const Instruction& instruction = *state.pending[slot];
    const std::uint64_t* positions =
        &state.positions[slot * static_cast<std::size_t>(routine_->max_sends)];
    for (std::size_t i = 0; i < instruction.sends.size(); ++i) {
      if (!out(state, instruction.sends[i]).released(positions[i])) return;
    }
    ++state.done;
  }
}

bool Execution::ready(LaneState& state, const Instruction& instruction) {
  if (state.issued - state.done >= kMaxPending) return false;
  for (const Operand& source : instruction.sources) {
    if (source.incoming < 0) continue;
    InPort& port = in(state, source.incoming);
    if (!port.has_message()) return false;
    if (port.tag() != work_.tag) {
      mismatch_ = routine_->program.incoming[static_cast<std::size_t>(source.incoming)].peer;
      return false;
    }
  }
  for (const int send : instruction.sends) {
    if (!out(state, send).has_credit(layout_)) return false;
  }
  return may_leave(state, instruction) && after_met(state, instruction, state.tile);
}

bool Execution::may_leave(const LaneState& state, const Instruction& instruction) const {
  const int step = instruction.step - work_.run_ahead;
  if (step <= 0 || !held_to_steps(routine_->program, instruction)) return true;
  const std::size_t lanes = routine_->program.lanes.size();
  const LaneState* const first = &lanes_[static_cast<std::size_t>(state.instance) * lanes];
  return std::none_of(first, first + lanes, [&](const LaneState& other) {
    return is_behind(*other.lane, other.tile, other.next, state.tile, step);
  });
}

bool Execution::after_met(LaneState& state, const Instruction& instruction, int tile) {
  const auto round = static_cast<std::uint64_t>(tile / work_.instances);
  const std::size_t base =
      static_cast<std::size_t>(state.instance) * routine_->program.lanes.size();
  for (const Dependency& dependency : instruction.after) {
    LaneState& other = lanes_[base + static_cast<std::size_t>(dependency.lane)];
    retire(other);
    const std::uint64_t needed = round * other.lane->instructions.size() +
                                 static_cast<std::uint64_t>(dependency.instruction) + 1;
    if (other.done < needed) return false;
  }
  return true;
}

// Folds the sources and leaves in state.message what is to be sent, wherever that lies: in the
// user's memory if it is there in one piece, in the only receiver's slot if that is mapped here,
// else in the lane's staging buffer.
void Execution::fold_message(LaneState& state, const Instruction& instruction) {
  state.message = {};
  state.in_window = false;
  const std::size_t bytes = message_elements(instruction, state.tile) * element_bytes_;
  bool whole = true;  // every local operand is one piece of memory
  for (const Operand& source : instruction.sources) {
    if (source.incoming < 0) whole = whole && contiguous(source.local, instruction.count);
  }
  if (instruction.destination) {
    whole = whole && contiguous(*instruction.destination, instruction.count);
  }

  std::byte* message = nullptr;  // where the message is to be made, if it needs a place
  if (!instruction.sends.empty()) {
    const Operand& first = instruction.sources.front();
    if (whole && instruction.destination) {
      state.message = {at(*instruction.destination, 0, state.tile), bytes};
    } else if (whole && instruction.sources.size() == 1 && first.incoming < 0) {
      state.message = {at(first.local, 0, state.tile), bytes};
      return;  // a plain send: nothing to fold
    } else {
      if (instruction.sends.size() == 1) message = out(state, instruction.sends[0]).window(layout_);
      state.in_window = message != nullptr;
      if (message == nullptr) {
        std::vector<std::byte>& staging = state.staging[state.issued % kMaxPending];
        if (staging.size() < bytes) staging.resize(bytes);
        message = staging.data();
      }
      state.message = {message, bytes};
    }
  }
  if (!in_place(state, instruction)) fold_pieces(state, instruction, message, whole);
  for (const Operand& source : instruction.sources) {
    if (source.incoming >= 0) in(state, source.incoming).take(layout_);
  }
}

// Folds chunk by chunk, or all at once where every operand is one piece.
void Execution::fold_pieces(LaneState& state, const Instruction& instruction, std::byte* message,
                            bool whole) {
  const int divisor = instruction.completes ? work_.divisor : 1;
  const int pieces = whole ? 1 : instruction.count;
  std::size_t done_bytes = 0;
  thread_local std::vector<const void*> sources;
  for (int piece = 0; piece < pieces; ++piece) {
    const std::size_t elements = whole ? message_elements(instruction, state.tile)
                                       : chunk_elements(instruction.chunk + piece, state.tile);
    const std::size_t bytes = elements * element_bytes_;
    if (bytes > 0) {
      std::byte* part = message == nullptr ? nullptr : message + done_bytes;
      std::byte* target =
          instruction.destination ? at(*instruction.destination, piece, state.tile) : part;
      sources.clear();
      for (const Operand& source : instruction.sources) {
        sources.push_back(source.incoming < 0
                              ? at(source.local, piece, state.tile)
                              : in(state, source.incoming).message(layout_) + done_bytes);
      }
      if (sources.size() > 1) {
        fold(target, sources, elements, work_.type, work_.op, divisor);
      } else if (target != nullptr && sources[0] != target) {
        // What is sent on is read once more.
        const bool streams =
            instruction.sends.empty() && work_.count * element_bytes_ >= kStreamedBlock;
        copy(target, sources[0], bytes, streams);
      }
      if (part != nullptr && part != target) copy_bytes(part, target, bytes);
    }
    done_bytes += bytes;
  }
}

bool Execution::send_message(LaneState& state, const Instruction& instruction) {
  std::uint64_t* positions =
      &state.positions[state.issued % kMaxPending * static_cast<std::size_t>(routine_->max_sends)];
  while (static_cast<std::size_t>(state.sends_made) < instruction.sends.size()) {
    const auto i = static_cast<std::size_t>(state.sends_made);
    OutPort& port = out(state, instruction.sends[i]);
    if (!port.try_send(layout_, state.message, state.in_window, work_.tag)) return false;
    positions[i] = port.sent;
    ++state.sends_made;
  }
  return true;
}

std::size_t Execution::tile_elements(int tile) const {
  const std::size_t begin = static_cast<std::size_t>(tile) * tile_count_;
  return std::min(tile_count_, work_.count - begin);
}

std::size_t Execution::chunk_elements(ChunkId chunk, int tile) const {
  const auto k = static_cast<std::size_t>(routine_->chunks_per_block);
  const std::size_t j = static_cast<std::size_t>(chunk) % k;
  const std::size_t n = tile_elements(tile);
  return (j + 1) * n / k - j * n / k;
}

std::size_t Execution::message_elements(const Instruction& instruction, int tile) const {
  if (instruction.count == 1) return chunk_elements(instruction.chunk, tile);
  const auto k = static_cast<std::size_t>(routine_->chunks_per_block);
  const std::size_t n = tile_elements(tile);
  // Elements before chunk c, were all blocks' tiles laid end to end.
  const auto before = [&](std::size_t c) { return c / k * n + c % k * n / k; };
  const auto first = static_cast<std::size_t>(instruction.chunk);
  return before(first + static_cast<std::size_t>(instruction.count)) - before(first);
}

// Address of the chunk `shift` places into `range`, for this tile.
std::byte* Execution::at(const LocalRange& range, int shift, int tile) const {
  const auto k = static_cast<std::size_t>(routine_->chunks_per_block);
  const auto index = static_cast<std::size_t>(range.index) + static_cast<std::size_t>(shift);
  if (range.buffer == Buffer::scratch) {
    const std::size_t element =
        index * scratch_stride_ + static_cast<std::size_t>(tile) * (scratch_stride_ / num_tiles_);
    return const_cast<std::byte*>(scratch_.data()) + element * element_bytes_;
  }
  const std::size_t element = index / k * work_.count +
                              static_cast<std::size_t>(tile) * tile_count_ +
                              index % k * tile_elements(tile) / k;
  // Input is only ever read; one pointer type keeps the arithmetic in one place.
  std::byte* base =
      range.buffer == Buffer::input ? const_cast<std::byte*>(work_.input) : work_.output;
  return base == nullptr ? nullptr : base + element * element_bytes_;
}

bool Execution::contiguous(const LocalRange& range, int count) const {
  if (count == 1) return true;
  const int k = routine_->chunks_per_block;
  if (range.buffer == Buffer::scratch) {
    return num_tiles_ == 1 && work_.count % static_cast<std::size_t>(k) == 0;
  }
  return num_tiles_ == 1 || range.index / k == (range.index + count - 1) / k;
}

Waiting Execution::waiting() const {
  for (std::size_t i = 0; i < num_lanes_; ++i) {
    const LaneState& state = lanes_[i];
    if (state.finished || state.tile >= num_tiles_) continue;
    const Instruction& instruction = state.lane->instructions[static_cast<std::size_t>(state.next)];
    Waiting waiting{.instruction = state.next + 1,
                    .of = static_cast<int>(state.lane->instructions.size())};
    for (const Operand& source : instruction.sources) {
      if (source.incoming < 0) continue;
      const Port& port = routine_->program.incoming[static_cast<std::size_t>(source.incoming)];
      if (state.folded || in(state, source.incoming).has_message()) continue;
      waiting.peer = port.peer;
      waiting.channel = port.channel;
      return waiting;
    }
    for (const int send : instruction.sends) {
      OutPort& port = out(state, send);
      if (!state.folded && port.has_credit(layout_)) continue;
      waiting.peer = routine_->program.outgoing[static_cast<std::size_t>(send)].peer;
      waiting.channel = routine_->program.outgoing[static_cast<std::size_t>(send)].channel;
      waiting.to_send = true;
      return waiting;
    }
  }
  return {};
}

}  // namespace chorus
