#include "formats/msccl_replay.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <deque>
#include <map>
#include <optional>

#include "formats/msccl_memory.hpp"
#include "formats/msccl_run.hpp"
#include "model/schedule/contract.hpp"

namespace chorus::formats {
namespace {

/// Values and which contributions they hold.
class Values {
 public:
  explicit Values(const Schedule& outline)
      : combining_(is_combining(outline.collective.kind)),
        words_((static_cast<std::size_t>(outline.world_size) + 63) / 64) {}

  int initial(ChunkId chunk, Rank rank) {
    const int value = add({.chunk = chunk, .rank = rank, .own = true, .arrivals = {}});
    if (combining_) bits_[value * words_ + rank / 64] |= std::uint64_t{1} << (rank % 64);
    return value;
  }

  /// What `move` brings to `rank`.
  int arrived(int value, int move, Rank rank) {
    const ChunkId chunk = list_[value].chunk;
    const int result = add({.chunk = chunk, .rank = rank, .own = false, .arrivals = {move}});
    if (combining_) {
      for (std::size_t w = 0; w < words_; ++w) {
        bits_[result * words_ + w] = bits_[value * words_ + w];
      }
    }
    return result;
  }

  /// The sum of two; they are of one chunk and have no contribution in common.
  int sum(int a, int b) {
    MscclValue value = list_[a];
    value.own = value.own || list_[b].own;
    value.arrivals.insert(value.arrivals.end(), list_[b].arrivals.begin(), list_[b].arrivals.end());
    const int result = add(std::move(value));
    for (std::size_t w = 0; w < words_; ++w) {
      bits_[result * words_ + w] = bits_[a * words_ + w] | bits_[b * words_ + w];
    }
    return result;
  }

  [[nodiscard]] bool holds(int value, Rank rank) const {
    return ((bits_[value * words_ + rank / 64] >> (rank % 64)) & 1) != 0;
  }

  [[nodiscard]] bool combining() const { return combining_; }
  [[nodiscard]] const MscclValue& operator[](int value) const { return list_[value]; }
  std::vector<MscclValue> take() { return std::move(list_); }

 private:
  int add(MscclValue value) {
    list_.push_back(std::move(value));
    if (combining_) bits_.resize(bits_.size() + words_);
    return static_cast<int>(list_.size()) - 1;
  }

  bool combining_;
  std::size_t words_;
  std::vector<MscclValue> list_;
  std::vector<std::uint64_t> bits_;  // [value · words_], only if combining
};

struct Message {
  int index = 0;
  std::vector<int> moves;
  Clock clock;
};

class Machine {
 public:
  Machine(const MscclAlgo& algo, const Schedule& outline, bool in_place, std::string_view where)
      : algo_(algo),
        outline_(outline),
        where_(where),
        connections_(connections(algo, where)),
        values_(outline),
        in_flight_(connections_.size()) {
    int blocks = 0;
    for (Rank rank = 0; rank < outline.world_size; ++rank) {
      const MscclGpu& gpu = algo.gpus[rank];
      first_block_.push_back(blocks);
      blocks += static_cast<int>(gpu.blocks.size());
      memory_.emplace_back(gpu, outline, rank, in_place, where);
      fill(memory_.back(), gpu, rank);
    }
    clocks_.assign(blocks, Clock(blocks));
  }

  Trace run(int slots) {
    MscclRun run(algo_, connections_, slots, where_);
    run.run([&](const MscclRun::Issued& issued) { execute(issued); });
    refuse_deadlock(run);
    refuse_wrong_outputs();
    trace_.values = values_.take();
    return std::move(trace_);
  }

 private:
  void fill(MscclMemory& memory, const MscclGpu& gpu, Rank rank) {
    for (int i = 0; i < memory.inputs(); ++i) {
      const ChunkId chunk = input_chunk(outline_, i, rank);
      memory.preset(memory.place({Buffer::input, i}), values_.initial(chunk, rank));
    }
    for (const auto& [from, to] : gpu.copies) {
      memory.preset(memory.place({Buffer::output, to}),
                    memory.value(memory.place({Buffer::input, from})));
    }
  }

  [[noreturn]] void fail(const std::string& complaint) const {
    throw ProgramFault(fmt::format("{} {}", describe(algo_, at_, where_), complaint));
  }

  [[nodiscard]] const MscclStep& step() const {
    return algo_.gpus[at_.rank].blocks[at_.block].steps[at_.step];
  }

  void execute(const MscclRun::Issued& issued) {
    at_ = issued.at;
    trace_.order.push_back(at_);
    Clock& clock = learn(issued);
    const std::vector<int> result = fold(issued);
    if (writes(step().type) && !stays()) store(result);
    if (issued.outgoing >= 0) put(result, issued.outgoing);
    clock[first_block_[at_.rank] + at_.block] = at_.step + 1;
    if (step().awaited) told_[{first_block_[at_.rank] + at_.block, at_.step}] = clock;
    if (issued.outgoing >= 0) in_flight_[issued.outgoing].back().clock = clock;
  }

  /// A copy of what lies there already, as a step that serves both forms has in place: the bytes
  /// do not change, so others may read them meanwhile.
  [[nodiscard]] bool stays() const {
    const MscclMemory& memory = memory_[at_.rank];
    return step().type == StepType::copy &&
           memory.place(step().source) == memory.place(step().destination);
  }

  /// The clock of the threadblock, brought up to what its wait and its message tell it.
  Clock& learn(const MscclRun::Issued& issued) {
    Clock& clock = clocks_[first_block_[at_.rank] + at_.block];
    const auto join = [&](const Clock& other) {
      for (std::size_t i = 0; i < clock.size(); ++i) clock[i] = std::max(clock[i], other[i]);
    };
    if (issued.waited_step >= 0) {
      join(told_.at({first_block_[at_.rank] + step().waits_block, issued.waited_step}));
    }
    if (issued.incoming >= 0) join(in_flight_[issued.incoming].front().clock);
    return clock;
  }

  /// The values that the step stores or sends.
  std::vector<int> fold(const MscclRun::Issued& issued) {
    std::vector<int> result;
    if (step().type == StepType::reduce) {
      result = load(step().destination);
      add(result, load(step().source));
    } else if (reads(step().type)) {
      result = load(step().source);
    }
    if (issued.incoming < 0) return result;
    Message message = std::move(in_flight_[issued.incoming].front());
    in_flight_[issued.incoming].pop_front();
    trace_.messages[message.index].received = at_;
    trace_.messages[message.index].received_at = static_cast<int>(trace_.order.size()) - 1;
    std::vector<int> arrived;
    for (const int move : message.moves) {
      arrived.push_back(values_.arrived(trace_.moves[move].value, move, at_.rank));
    }
    if (result.empty()) return arrived;
    add(result, arrived);
    return result;
  }

  std::vector<int> load(LocalRange range) {
    MscclMemory& memory = memory_[at_.rank];
    std::vector<int> result;
    for (int i = 0; i < step().count; ++i) {
      const LocalRange place{range.buffer, range.index + i};
      const int value = memory.value(memory.place(place));
      const auto collision =
          memory.read(memory.place(place), {at_.block, at_.step},
                      clocks_[first_block_[at_.rank] + at_.block], first_block_[at_.rank]);
      if (collision) fail_race("reads", place, *collision);
      if (value < 0) fail(fmt::format("reads {}, which nothing has written", name(place)));
      result.push_back(value);
    }
    return result;
  }

  void store(const std::vector<int>& result) {
    MscclMemory& memory = memory_[at_.rank];
    for (int i = 0; i < step().count; ++i) {
      const LocalRange place{step().destination.buffer, step().destination.index + i};
      const auto collision =
          memory.write(memory.place(place), result[i], {at_.block, at_.step},
                       clocks_[first_block_[at_.rank] + at_.block], first_block_[at_.rank]);
      if (collision) fail_race("writes", place, *collision);
    }
  }

  [[noreturn]] void fail_race(const char* does, LocalRange place, LocalStep other) const {
    fail(fmt::format("{} {}, and nothing orders it after {}, which touches it too", does,
                     name(place), describe(algo_, {at_.rank, other.block, other.step}, where_)));
  }

  void add(std::vector<int>& sums, const std::vector<int>& more) {
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const ChunkId chunk = values_[sums[i]].chunk;
      const ChunkId other = values_[more[i]].chunk;
      if (!values_.combining()) {
        fail(fmt::format("reduces chunk {} into chunk {}, but {} only copies", other, chunk,
                         name_of(outline_.collective.kind)));
      }
      if (chunk != other) fail(fmt::format("reduces chunk {} into chunk {}", other, chunk));
      for (Rank rank = 0; rank < outline_.world_size; ++rank) {
        if (!values_.holds(sums[i], rank) || !values_.holds(more[i], rank)) continue;
        fail(fmt::format("reduces the contribution of rank {} to chunk {} a second time", rank,
                         chunk));
      }
      sums[i] = values_.sum(sums[i], more[i]);
    }
  }

  void put(const std::vector<int>& sent, int connection) {
    const Connection& c = connections_[connection];
    Message message{.index = static_cast<int>(trace_.messages.size()), .moves = {}, .clock = {}};
    trace_.messages.push_back({.sent = at_, .received = {}});
    for (const int value : sent) {
      message.moves.push_back(static_cast<int>(trace_.moves.size()));
      trace_.moves.push_back({c.src, c.dst, values_[value].chunk, value, message.index});
    }
    in_flight_[connection].push_back(std::move(message));
  }

  void refuse_deadlock(const MscclRun& run) const {
    constexpr std::size_t kNamed = 6;
    const std::vector<StepRef> stuck = run.stuck();
    if (stuck.empty()) return;
    std::string sentence;
    for (std::size_t i = 0; i < std::min(stuck.size(), kNamed); ++i) {
      sentence += fmt::format("{}{} waits for {}", i == 0 ? "" : "; ",
                              describe(algo_, stuck[i], where_), run.obstacle(stuck[i]));
    }
    if (stuck.size() > kNamed) {
      sentence += fmt::format("; and {} more threadblocks wait", stuck.size() - kNamed);
    }
    throw ProgramFault(sentence + ": a deadlock");
  }

  void refuse_wrong_outputs() {
    for (Rank rank = 0; rank < outline_.world_size; ++rank) {
      const MscclMemory& memory = memory_[rank];
      std::vector<int>& outputs = trace_.outputs.emplace_back();
      for (int i = 0; i < memory.outputs(); ++i) {
        const int place = memory.place({Buffer::output, i});
        outputs.push_back(memory.value(place));
        const auto wrong = wrong_output(outputs.back(), output_chunk(outline_, i, rank));
        if (!wrong) continue;
        const LocalStep writer = memory.writer(place);
        const std::string subject =
            writer.block < 0 ? fmt::format("{}:{}: rank {}", where_, algo_.gpus[rank].line, rank)
                             : describe(algo_, {rank, writer.block, writer.step}, where_);
        throw ProgramFault(fmt::format("{} leaves {} of rank {} {}", subject,
                                       name({Buffer::output, i}), rank, *wrong));
      }
    }
  }

  /// What is wrong with `value` where the finished `chunk` belongs, as a clause.
  [[nodiscard]] std::optional<std::string> wrong_output(int value, ChunkId chunk) const {
    const auto kind = name_of(outline_.collective.kind);
    if (value < 0) return fmt::format("unwritten, where {} promises chunk {}", kind, chunk);
    if (values_[value].chunk != chunk) {
      return fmt::format("with chunk {}, where {} promises chunk {}", values_[value].chunk, kind,
                         chunk);
    }
    if (!values_.combining()) return std::nullopt;
    for (Rank of = 0; of < outline_.world_size; ++of) {
      if (!values_.holds(value, of)) {
        return fmt::format("without the contribution of rank {} to chunk {}", of, chunk);
      }
    }
    return std::nullopt;
  }

  static std::string name(LocalRange place) {
    const char* buffer = place.buffer == Buffer::input    ? "input"
                         : place.buffer == Buffer::output ? "output"
                                                          : "scratch";
    return fmt::format("{}[{}]", buffer, place.index);
  }

  const MscclAlgo& algo_;
  const Schedule& outline_;
  std::string_view where_;
  std::vector<Connection> connections_;
  Values values_;
  std::vector<MscclMemory> memory_;             // [rank]
  std::vector<int> first_block_;                // [rank]: index of its threadblock 0 among all
  std::vector<Clock> clocks_;                   // [threadblock]
  std::map<std::pair<int, int>, Clock> told_;   // by threadblock and step that others wait for
  std::vector<std::deque<Message>> in_flight_;  // [connection]
  StepRef at_;
  Trace trace_;
};

}  // namespace

Trace replay(const MscclAlgo& algo, const Schedule& outline, const ReplayOptions& options,
             std::string_view where) {
  return Machine(algo, outline, options.in_place, where).run(options.slots);
}

}  // namespace chorus::formats
