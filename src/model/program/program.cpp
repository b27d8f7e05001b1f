// first_fault(programs): what every rank would hold if its program ran on contribution counts.
#include "model/program/program.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "base/index.hpp"
#include "model/program/abstract_run.hpp"
#include "model/program/races.hpp"
#include "model/schedule/contract.hpp"

namespace chorus {
namespace {

using Fault = std::optional<std::string>;

/// A value by number: what a rank contributed, or the result of a fold.
using ValueId = std::int64_t;
constexpr ValueId kNoValue = -1;

class Values {
 public:
  explicit Values(const Schedule& outline)
      : outline_(outline),
        combining_(is_combining(outline.collective.kind)),
        num_initial_(static_cast<ValueId>(outline.num_chunks) *
                     (combining_ ? outline.world_size : 1)) {}

  /// The value of `chunk` that `rank` starts with.
  [[nodiscard]] ValueId initial(ChunkId chunk, Rank rank) const {
    return combining_ ? static_cast<ValueId>(rank) * outline_.num_chunks + chunk : chunk;
  }

  [[nodiscard]] ChunkId chunk(ValueId value) const {
    return value < num_initial_ ? static_cast<ChunkId>(value % outline_.num_chunks)
                                : folded_[value - num_initial_].chunk;
  }

  /// What folding `sources` gives; they are of one chunk.
  ValueId fold(std::span<const ValueId> sources, bool completes) {
    if (sources.size() == 1 && !completes) return sources.front();
    const auto n = static_cast<std::size_t>(outline_.world_size);
    const std::size_t begin = rows_.size();
    rows_.resize(begin + n);
    for (const ValueId source : sources) {
      for (std::size_t i = 0; i < n; ++i) {
        rows_[begin + i] = static_cast<std::uint8_t>(
            std::min(rows_[begin + i] + count(source, static_cast<Rank>(i)), 255));
      }
    }
    folded_.push_back({chunk(sources.front()), completes});
    return num_initial_ + static_cast<ValueId>(folded_.size()) - 1;
  }

  /// How often `value` contains the contribution of `rank`.
  [[nodiscard]] int count(ValueId value, Rank rank) const {
    if (value >= num_initial_) {
      return rows_[(value - num_initial_) * outline_.world_size + rank];
    }
    const Rank of = combining_ ? static_cast<Rank>(value / outline_.num_chunks)
                               : origin(outline_, chunk(value));
    return rank == of ? 1 : 0;
  }

  /// What is wrong with `value` as the finished result, as a clause.
  [[nodiscard]] Fault unfinished(ValueId value) const {
    if (!combining_) return std::nullopt;  // of the right chunk, so the right value
    const bool barrier = outline_.collective.kind == CollectiveKind::barrier;
    for (Rank rank = 0; rank < outline_.world_size; ++rank) {
      const int times = count(value, rank);
      if (times == 1 || (times > 1 && barrier)) continue;
      return fmt::format("contains the contribution of rank {} {} times", rank, times);
    }
    return std::nullopt;
  }

  [[nodiscard]] bool completed(ValueId value) const {
    return value >= num_initial_ && folded_[value - num_initial_].completed;
  }

 private:
  struct Folded {
    ChunkId chunk;
    bool completed;
  };

  const Schedule& outline_;
  bool combining_;
  ValueId num_initial_;
  std::vector<Folded> folded_;
  std::vector<std::uint8_t> rows_;  // [folded · n]
};

struct Message {
  ChunkId chunk = 0;
  std::vector<ValueId> values;  // [count]
};

/// Messages of one port; the memory of taken ones is reused once all are.
class MessageQueue {
 public:
  void put(Message message) { messages_.push_back(std::move(message)); }
  Message take() {
    Message message = std::move(messages_[head_++]);
    if (head_ == messages_.size()) {
      messages_.clear();
      head_ = 0;
    }
    return message;
  }

 private:
  std::vector<Message> messages_;
  std::size_t head_ = 0;
};

/// All ranks' memory, and what each instruction does to it.
class Machine {
 public:
  Machine(std::span<const Program> programs, const Schedule& outline, const AbstractRun& run,
          bool in_place, int tiles)
      : programs_(programs), outline_(outline), run_(run), values_(outline) {
    for (const Program& program : programs) {
      places_.emplace_back(program, outline, in_place);
      incoming_.emplace_back(program.incoming.size());
      auto& memory = memory_.emplace_back(tiles);
      for (auto& tile : memory) fill(tile, program.rank);
    }
  }

  [[nodiscard]] const Places& places(Rank rank) const { return places_[rank]; }

  Fault execute(const Issue& issue) {
    const Instruction& instruction =
        programs_[issue.rank].lanes[issue.lane].instructions[issue.instruction];
    auto& memory = memory_[issue.rank][issue.tile];
    sources_.assign(instruction.count, {});
    for (const Operand& operand : instruction.sources) {
      if (Fault fault = operand.incoming < 0 ? read(instruction, operand.local, issue.rank, memory)
                                             : take(instruction, operand.incoming, issue.rank)) {
        return fault;
      }
    }
    Message result{.chunk = instruction.chunk, .values = {}};
    for (const auto& sources : sources_) {
      result.values.push_back(values_.fold(sources, instruction.completes));
      if (!instruction.completes) continue;
      if (auto why = values_.unfinished(result.values.back())) {
        return fmt::format("claims to complete a reduction that {}", *why);
      }
    }
    if (instruction.destination) {
      const auto place = places_[issue.rank].at(*instruction.destination);
      std::copy(result.values.begin(), result.values.end(), memory.begin() + place);
    }
    for (const int port : instruction.sends) {
      const Rank peer = programs_[issue.rank].outgoing[port].peer;
      incoming_[peer][run_.far_end_of_outgoing(issue.rank, port)].put(result);
    }
    return std::nullopt;
  }

  /// First place of an output that does not hold what the collective promises.
  [[nodiscard]] Fault wrong_output() const {
    const int k = outline_.num_chunks / num_blocks(outline_.collective.kind, outline_.world_size);
    for (Rank rank = 0; rank < outline_.world_size; ++rank) {
      const int size = output_blocks(outline_.collective, outline_.world_size, rank) * k;
      for (std::size_t tile = 0; tile < memory_[rank].size(); ++tile) {
        for (int i = 0; i < size; ++i) {
          const ValueId value = memory_[rank][tile][places_[rank].at({Buffer::output, i})];
          if (Fault fault = wrong(value, output_chunk(outline_, i, rank))) {
            return fmt::format("rank {} ends with output[{}], tile {}, that {}", rank, i, tile,
                               *fault);
          }
        }
      }
    }
    return std::nullopt;
  }

 private:
  void fill(std::vector<ValueId>& tile, Rank rank) const {
    tile.assign(places_[rank].size(), kNoValue);
    for (int i = 0; i < places_[rank].input_size(); ++i) {
      tile[places_[rank].at({Buffer::input, i})] =
          values_.initial(input_chunk(outline_, i, rank), rank);
    }
  }

  Fault read(const Instruction& instruction, const LocalRange& range, Rank rank,
             const std::vector<ValueId>& memory) {
    for (int i = 0; i < instruction.count; ++i) {
      const ValueId value = memory[places_[rank].at({range.buffer, range.index + i})];
      if (value == kNoValue) {
        return fmt::format("reads {}, which nothing has written",
                           name_of({range.buffer, range.index + i}));
      }
      if (values_.chunk(value) != instruction.chunk + i) {
        return fmt::format("reads chunk {} from {}, where chunk {} lies", instruction.chunk + i,
                           name_of({range.buffer, range.index + i}), values_.chunk(value));
      }
      sources_[i].push_back(value);
    }
    return std::nullopt;
  }

  Fault take(const Instruction& instruction, int port, Rank rank) {
    const Message message = incoming_[rank][port].take();
    const auto count = static_cast<int>(message.values.size());
    if (message.chunk != instruction.chunk || count != instruction.count) {
      return fmt::format(
          "expects chunks [{}, {}) from rank {} on channel {}, but chunks [{}, {}) come",
          instruction.chunk, instruction.chunk + instruction.count,
          programs_[rank].incoming[port].peer, programs_[rank].incoming[port].channel,
          message.chunk, message.chunk + count);
    }
    for (int i = 0; i < count; ++i) sources_[i].push_back(message.values[i]);
    return std::nullopt;
  }

  [[nodiscard]] Fault wrong(ValueId value, ChunkId chunk) const {
    if (value == kNoValue) return "nothing has written";
    if (values_.chunk(value) != chunk) {
      return fmt::format("should be chunk {} but is chunk {}", chunk, values_.chunk(value));
    }
    if (Fault fault = values_.unfinished(value)) return fault;
    const bool divided = is_combining(outline_.collective.kind) && outline_.world_size > 1 &&
                         outline_.collective.kind != CollectiveKind::barrier;
    if (divided && !values_.completed(value)) {
      return fmt::format("holds chunk {}, which no instruction completes", chunk);
    }
    return std::nullopt;
  }

  std::span<const Program> programs_;
  const Schedule& outline_;
  const AbstractRun& run_;
  Values values_;
  std::vector<Places> places_;                             // [rank]
  std::vector<std::vector<std::vector<ValueId>>> memory_;  // [rank][tile][place]
  std::vector<std::vector<MessageQueue>> incoming_;        // [rank][port]
  std::vector<std::vector<ValueId>> sources_;              // [count] of one instruction
};

std::string describe(const Issue& issue) {
  return fmt::format("rank {} lane {} instruction {} (tile {})", issue.rank, issue.lane,
                     issue.instruction, issue.tile);
}

Fault deadlock(const AbstractRun& run) {
  constexpr std::size_t kNamed = 6;
  const std::vector<Issue> stuck = run.stuck();
  if (stuck.empty()) return std::nullopt;
  std::string sentence = "deadlock: ";
  for (std::size_t i = 0; i < std::min(stuck.size(), kNamed); ++i) {
    sentence += fmt::format("{}{} waits for {}", i == 0 ? "" : "; ", describe(stuck[i]),
                            run.obstacle(stuck[i]));
  }
  if (stuck.size() > kNamed) {
    sentence += fmt::format("; and {} more lanes wait", stuck.size() - kNamed);
  }
  return sentence;
}

Fault left_over(std::span<const Program> programs, const AbstractRun& run) {
  for (const Program& program : programs) {
    for (std::size_t i = 0; i < program.outgoing.size(); ++i) {
      const int pending = run.pending(program.rank, static_cast<int>(i));
      if (pending == 0) continue;
      return fmt::format(
          "no instruction receives {} message{} from rank {} to rank {} on channel {}", pending,
          pending == 1 ? "" : "s", program.rank, program.outgoing[i].peer,
          program.outgoing[i].channel);
    }
  }
  return std::nullopt;
}

}  // namespace

bool held_to_steps(const Program& program, const Instruction& instruction) {
  return program.collective.kind == CollectiveKind::all_reduce && !instruction.sends.empty() &&
         !instruction.destination && instruction.sources.size() == 1 &&
         instruction.sources.front().incoming < 0;
}

bool is_behind(const Lane& lane, int lane_tile, int next, int tile, int step) {
  if (lane_tile > tile || lane.instructions.empty()) return false;
  return lane.instructions[at(lane_tile < tile ? 0 : next)].step < step;
}

int max_message_chunks(const Program& program) {
  int most = 1;
  for (const Lane& lane : program.lanes) {
    for (const Instruction& instruction : lane.instructions) {
      const bool receives = std::ranges::any_of(
          instruction.sources, [](const Operand& source) { return source.incoming >= 0; });
      if (receives || !instruction.sends.empty()) most = std::max(most, instruction.count);
    }
  }
  return most;
}

int shortest_mean_message_chunks(const Program& program) {
  std::vector<int> messages(program.outgoing.size(), 0), chunks(program.outgoing.size(), 0);
  for (const Lane& lane : program.lanes) {
    for (const Instruction& instruction : lane.instructions) {
      for (const int out : instruction.sends) {
        ++messages[at(out)];
        chunks[at(out)] += instruction.count;
      }
    }
  }
  int shortest = program.num_chunks;
  for (std::size_t out = 0; out < messages.size(); ++out) {
    if (messages[out] > 0) shortest = std::min(shortest, chunks[out] / messages[out]);
  }
  return std::max(shortest, 1);
}

std::optional<std::string> first_fault(std::span<const Program> programs, int slots, bool in_place,
                                       int tiles) {
  if (slots < 1 || tiles < 1) return fmt::format("{} slots and {} tiles", slots, tiles);
  if (Fault fault = malformed(programs)) return fault;
  const Program& first = programs.front();
  const Schedule outline{.name = first.name,
                         .collective = first.collective,
                         .world_size = first.world_size,
                         .num_chunks = first.num_chunks,
                         .steps = {}};
  AbstractRun run(programs, slots, tiles);
  Machine machine(programs, outline, run, in_place, tiles);
  std::vector<std::vector<Dependency>> order(programs.size());  // of one tile, as issued
  Fault fault;
  run.run([&](const Issue& issue) {
    if (fault) return;
    if (issue.tile == 0) order[issue.rank].push_back({issue.lane, issue.instruction});
    if (auto why = machine.execute(issue)) fault = fmt::format("{} {}", describe(issue), *why);
  });
  if (fault) return fault;
  if ((fault = deadlock(run))) return fault;
  if ((fault = left_over(programs, run))) return fault;
  if ((fault = machine.wrong_output())) return fault;
  for (const Program& program : programs) {
    fault = first_race(program, machine.places(program.rank), order[program.rank]);
    if (fault) return fmt::format("rank {}: {}", program.rank, *fault);
  }
  return std::nullopt;
}

}  // namespace chorus
