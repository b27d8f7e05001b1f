#include "trials.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <utility>

#include "collectives/algorithms.hpp"
#include "device/image.hpp"
#include "model/schedule/contract.hpp"
#include "runtime/selection/proved.hpp"

namespace ptx {
namespace {

using namespace chorus::device;  // layout
using chorus::Call;
using chorus::CollectiveKind;
using chorus::DataType;
using chorus::ReduceOp;
using chorus::testing::Case;
using chorus::testing::Trial;

constexpr std::uint32_t kTag = 0x1234567;

std::uint64_t address(const void* memory) { return reinterpret_cast<std::uint64_t>(memory); }

/// Memory that kernels may touch.
class Memory {
 public:
  std::byte* allocate(std::size_t bytes) {
    const std::size_t size = round_up(bytes, 4096);
    std::unique_ptr<std::byte, void (*)(void*)> made(
        static_cast<std::byte*>(std::aligned_alloc(4096, size)), std::free);
    std::memset(made.get(), 0, size);
    allow(made.get(), size);
    owned_.push_back(std::move(made));
    return owned_.back().get();
  }
  void allow(const void* begin, std::size_t bytes) {
    const std::uint64_t first = address(begin);
    // What lay there before is gone.
    std::erase_if(ranges_, [&](const auto& range) {
      return range.first < first + bytes && first < range.first + range.second;
    });
    ranges_[first] = bytes;
  }
  [[nodiscard]] Range around(std::uint64_t at) const {
    auto found = ranges_.upper_bound(at);
    if (found == ranges_.begin()) return {};
    --found;
    return {found->first, found->first + found->second};
  }

 private:
  std::vector<std::unique_ptr<std::byte, void (*)(void*)>> owned_;
  std::map<std::uint64_t, std::size_t> ranges_;
};

/// The ranks' arenas, tables and images.
class World {
 public:
  World(const Setup& setup, Machine& machine, Memory& memory)
      : setup_(setup), machine_(machine), memory_(memory) {
    shape_ = {.ranks = static_cast<std::uint32_t>(setup.ranks),
              .connections = 4,
              .word_connections = 4,
              .slots = 4,
              .slot_bytes = {2048, 4096}};
    for (int r = 0; r < setup.ranks; ++r) {
      arenas_.push_back(memory.allocate(Arena::size(shape_)));
      statuses_.push_back(reinterpret_cast<HostStatus*>(memory.allocate(sizeof(HostStatus))));
      tables_.push_back(reinterpret_cast<RankTable*>(memory.allocate(table_bytes(shape_.ranks))));
      machine.clocks().share_with_host(address(statuses_.back()), sizeof(HostStatus));
    }
    for (std::size_t r = 0; r < arenas_.size(); ++r) fill_table(r);
    make_programs();
  }

  /// `number` launches on every rank, each as soon as that rank's last one has ended. Throws if a
  /// result is wrong.
  void run(int number, std::uint64_t most_turns) {
    std::vector<Progress> ranks(arenas_.size());
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      if (!is_absent(r)) begin(r, ranks[r]);
    }
    if (setup_.trouble == Trouble::abort) statuses_[0]->abort = 1;
    bool runs = true;
    for (std::uint64_t turn = 0; runs; ++turn) {
      if (turn > most_turns) throw std::runtime_error("did not end");
      const bool turned = machine_.turn();
      runs = false;
      bool ended = false;
      for (std::size_t r = 0; r < ranks.size(); ++r) {
        if (ranks[r].launch != nullptr && ranks[r].launch->ended()) {
          end(r, ranks[r]);
          ended = true;
          if (ranks[r].done < number) begin(r, ranks[r]);
        }
        runs = runs || ranks[r].launch != nullptr;
      }
      if (runs && !turned && !ended) throw std::runtime_error("deadlock");
    }
    for (std::size_t r = 0; r < ranks.size(); ++r) judge(r, ranks[r]);
  }

 private:
  [[nodiscard]] bool is_absent(std::size_t rank) const {
    return (setup_.trouble == Trouble::timeout || setup_.trouble == Trouble::abort) && rank == 1;
  }

  void fill_table(std::size_t rank) {
    RankTable& table = *tables_[rank];
    table.shape = shape_;
    table.rank = static_cast<std::uint32_t>(rank);
    table.beyond_device = setup_.apart ? 1 : 0;
    table.status = address(statuses_[rank]);
    for (std::size_t p = 0; p < arenas_.size(); ++p) {
      table.arenas[p] = address(arenas_[p]);
      table.incoming[p] =
          address(arenas_[rank]) + Arena::box(shape_, static_cast<std::uint32_t>(p));
      table.outgoing[p] = address(arenas_[p]) + Arena::box(shape_, table.rank);
      table.incoming_slots[p] = table.incoming[p];
      table.outgoing_slots[p] = table.outgoing[p];
    }
    if (setup_.relayed && rank < 2) table.arenas[1 - rank] = 0;
  }

  std::uint64_t upload(const Image& image) {
    const std::size_t bytes = image.words.size() * sizeof(std::uint32_t);
    std::byte* const at = memory_.allocate(bytes);
    std::memcpy(at, image.words.data(), bytes);
    return address(at);
  }

  void make_programs() {
    if (setup_.messages) {
      for (int r = 0; r < 2; ++r) {
        const chorus::Program sends = chorus::message_program(2, r, 1 - r, true);
        const chorus::Program receives = chorus::message_program(2, r, 1 - r, false);
        const std::vector<chorus::Program> all{sends, receives};
        figures_.push_back(figures_of(all, 0));
        programs_.push_back(upload(flatten(sends)));
        programs_.push_back(upload(flatten(receives)));
      }
      return;
    }
    const chorus::Schedule schedule =
        chorus::algorithm(setup_.algorithm)
            .make({.kind = static_cast<CollectiveKind>(setup_.test.kind),
                   .world_size = setup_.ranks,
                   .levels = {}});
    const chorus::Proved proved = chorus::prove(schedule, 4, true);
    for (std::size_t r = 0; r < arenas_.size(); ++r) {
      figures_.push_back(figures_of(proved.programs, static_cast<chorus::Rank>(r)));
      programs_.push_back(upload(flatten(proved.programs[r])));
      lanes_.push_back(static_cast<std::uint32_t>(proved.programs[r].lanes.size()));
      if (setup_.direct) directs_.push_back(upload(flatten(proved.direct.value()[r])));
    }
  }

  Limits limits() const {
    return {.blocks = setup_.blocks,
            .instances = 2,
            .words_bytes = setup_.words ? std::uint64_t{1} << 30 : 0,
            .direct_bytes = 0,
            .relays = setup_.relayed};
  }

  // All ranks see the same addresses here, so a segment begins at the same one for all of them.
  void put_into_segments(std::size_t rank, std::uint32_t phase, CallArguments& call) {
    std::uint32_t segment = 2 * phase;
    for (auto [at, number] : {std::pair(call.input, &call.input_segment),
                              std::pair(call.output, &call.output_segment)}) {
      std::uint64_t* const views = tables_[rank]->segments + segment * arenas_.size();
      std::fill_n(views, arenas_.size(), at - 256);
      *number = ++segment;
    }
  }

  /// Buffers of one call, filled.
  const Call& buffers(std::size_t rank, std::vector<Trial>& trials) {
    const auto n = arenas_.size();
    trials.emplace_back(static_cast<chorus::Rank>(rank), n, setup_.test);
    const Call& call = trials.back().call();
    const chorus::Collective collective{.kind = static_cast<CollectiveKind>(call.kind),
                                        .root = call.peer};
    const std::size_t block = call.count * chorus::size_of(call.type);
    const auto world = static_cast<int>(n);
    const auto me = static_cast<chorus::Rank>(rank);
    const auto in = static_cast<std::size_t>(chorus::input_blocks(collective, world, me)) * block;
    const std::size_t out = output_bytes(call, rank);
    // In place one lies within the other.
    memory_.allow(call.input, call.input == call.output ? std::max(in, out) : in);
    if (call.input != call.output) memory_.allow(call.output, out);
    return call;
  }

  std::vector<CallArguments> collective_calls(std::size_t rank, std::uint64_t number,
                                              std::vector<Trial>& trials) {
    std::vector<CallArguments> calls(setup_.phases);
    trials.reserve(setup_.phases);
    for (std::uint32_t phase = 0; phase < setup_.phases; ++phase) {
      const Call& call = setup_.chained && phase > 0 ? trials[0].call() : buffers(rank, trials);
      CallArguments& a = calls[phase];
      a.program = programs_[rank];
      a.direct = setup_.direct && (phase == 0 || !setup_.mixed) ? directs_[rank] : 0;
      a.input = address(call.input);
      a.output = address(call.output);
      if (call.kind == Call::Kind::broadcast) {  // as DeviceCommunicator places it
        if (call.peer == static_cast<int>(rank)) {
          std::memcpy(call.output, call.input, call.count * chorus::size_of(call.type));
        }
        a.input = a.output;
      }
      describe(a, number * 64 + phase, phase, call.count, call.type);
      a.op = call.reduction.op;
      a.divisor = a.op == ReduceOp::avg ? shape_.ranks : 1;
      if (setup_.segments) put_into_segments(rank, phase, a);
      if (!setup_.exposed && rank == 1) a.input_segment = kNotExposed;
      if (setup_.trouble == Trouble::mismatch && rank == 1) a.tag ^= 0x303;
      const std::uint64_t scratch = cut(a, figures_[rank], shape_, limits(), false);
      a.scratch = address(memory_.allocate(scratch + 16));
    }
    return calls;
  }

  void describe(CallArguments& a, std::uint64_t sequence, std::uint32_t phase, std::uint64_t count,
                DataType type) const {
    a.count = count;
    a.type = type;
    a.divisor = 1;
    a.scale = setup_.scale;
    a.tag = kTag + phase;
    a.sequence = static_cast<std::uint32_t>(sequence + 1);
    a.phase = phase;
    a.next = kLocal;
  }

  /// Two messages to the other rank and two from it, in one phase.
  std::vector<CallArguments> message_calls(std::size_t rank, std::uint64_t number,
                                           std::vector<std::byte*>& memories) {
    std::vector<CallArguments> calls(4);
    for (std::uint32_t k = 0; k < 4; ++k) {
      const bool sends = k < 2;
      const std::size_t count = setup_.test.count / (k % 2 + 1);
      std::byte* const memory = memory_.allocate(count + 16);
      for (std::size_t i = 0; sends && i < count; ++i) {
        memory[i] = message_byte(i, k, number, rank);
      }
      memories.push_back(memory);
      CallArguments& a = calls[k];
      a.program = programs_[rank * 2 + (sends ? 0 : 1)];
      a.input = a.output = address(memory);
      describe(a, number * 64 + k, 0, count, DataType::uint8);
      a.tag = kTag + k % 2;
      a.next = k % 2 == 0 ? k + 1 : kLocal;
      a.follows = k % 2;
      a.first_work = sends ? 0 : 2;
      cut(a, figures_[rank], shape_, limits(), false);
      a.instances = 2;
    }
    return calls;
  }

  /// The launches of one rank.
  struct Progress {
    Launch* launch = nullptr;  ///< under way
    int done = 0;
    std::vector<std::vector<Trial>> trials;  ///< [launch]
    std::vector<std::vector<std::byte*>> messages;
  };

  void begin(std::size_t rank, Progress& progress) {
    const auto number = static_cast<std::uint64_t>(progress.done);
    std::vector<Trial>& trials = progress.trials.emplace_back();
    const std::vector<CallArguments> calls =
        setup_.messages ? message_calls(rank, number, progress.messages.emplace_back())
                        : collective_calls(rank, number, trials);
    auto launch = std::make_unique<ManyCalls>();
    launch->head = {.table = address(tables_[rank]),
                    .timeout_ns = setup_.trouble == Trouble::timeout ? 1 : ~std::uint64_t{0} >> 1,
                    .num_calls = static_cast<std::uint32_t>(calls.size()),
                    .num_phases = setup_.messages ? 1 : setup_.phases};
    std::copy(calls.begin(), calls.end(), launch->calls);
    std::uint32_t works = 4;
    for (const CallArguments& call : calls) {
      if (!setup_.messages) works = lanes_[rank] * call.instances;
    }
    const std::uint32_t blocks = setup_.direct ? setup_.blocks : std::min(setup_.blocks, works);
    progress.launch =
        &machine_.begin(calls.size() > kFewCalls ? "chorus_run_many" : "chorus_run_few",
                        launch.get(), sizeof(ManyCalls), blocks, setup_.threads,
                        setup_.apart ? static_cast<std::uint32_t>(rank) : 0);
  }

  // What follows in the stream finds the outputs complete.
  void end(std::size_t rank, Progress& progress) {
    Knowledge known;
    for (const auto& block : progress.launch->blocks) {
      known.join(block->clock.known);
      ++known.clock[block->clock.number];
      for (const auto& more : block->clock.more) {
        if (more) known.join(*more);
      }
    }
    if (setup_.trouble == Trouble::none) {
      for (const Trial& trial : progress.trials.back()) {
        const Call& call = trial.call();
        machine_.clocks().complete(known, address(call.output), output_bytes(call, rank));
      }
    }
    machine_.end(*progress.launch);
    progress.launch = nullptr;
    ++progress.done;
  }

  void judge(std::size_t rank, const Progress& progress) {
    if (is_absent(rank)) return;
    const HostStatus& status = *statuses_[rank];
    const auto failure = static_cast<Failure>(status.failure);
    if (setup_.trouble != Trouble::none) {
      if (failure == Failure::none) throw std::runtime_error("no failure was reported");
      machine_.clocks().told(address(&status.failure),
                             {address(&status.sequence), address(&status.peer),
                              address(&status.lane), address(&status.tile)});
      return;
    }
    if (failure != Failure::none) throw std::runtime_error("a failure was reported");
    for (const auto& trials : progress.trials) {
      for (const Trial& trial : trials) {
        if (setup_.scale == 1.0 && !setup_.chained) trial.check();
      }
    }
    for (std::size_t i = 0; i < progress.messages.size(); ++i)
      judge_messages(rank, i, progress.messages[i]);
  }

  void judge_messages(std::size_t rank, std::size_t launch,
                      const std::vector<std::byte*>& memory) const {
    for (std::uint32_t k = 0; k < 2; ++k) {
      const std::size_t count = setup_.test.count / (k + 1);
      for (std::size_t i = 0; i < count; ++i) {
        if (memory[2 + k][i] != message_byte(i, k, launch, 1 - rank)) {
          throw std::runtime_error("a message came wrong");
        }
      }
    }
  }
  static std::byte message_byte(std::size_t i, std::uint32_t message, std::uint64_t launch,
                                std::size_t rank) {
    return static_cast<std::byte>(i * 7 + message + launch * 3 + rank * 13);
  }

  [[nodiscard]] std::size_t output_bytes(const Call& call, std::size_t rank) const {
    const chorus::Collective collective{.kind = static_cast<CollectiveKind>(call.kind),
                                        .root = call.peer};
    return static_cast<std::size_t>(
               chorus::output_blocks(collective, setup_.ranks, static_cast<chorus::Rank>(rank))) *
           call.count * chorus::size_of(call.type);
  }

  const Setup& setup_;
  Machine& machine_;
  Memory& memory_;
  chorus::device::Shape shape_{};
  std::vector<std::byte*> arenas_;
  std::vector<HostStatus*> statuses_;
  std::vector<RankTable*> tables_;
  std::vector<Figures> figures_;
  std::vector<std::uint64_t> programs_, directs_;
  std::vector<std::uint32_t> lanes_;
};

/// What a flag there and one back cost is measured by a kernel of its own.
void run_ping(Machine& machine, Memory& memory, int launches, std::uint64_t most_turns) {
  struct {
    std::uint64_t flags;
    std::uint32_t rounds;
  } parameters{0, 20};
  for (int i = 0; i < launches; ++i) {
    std::byte* const flags = memory.allocate(256);
    parameters.flags = address(flags);
    Launch& launch = machine.begin("chorus_ping", &parameters, sizeof parameters, 2, 32, 0);
    for (std::uint64_t turn = 0; !launch.ended(); ++turn) {
      if (turn > most_turns) throw std::runtime_error("did not end");
      if (!machine.turn() && !launch.ended()) throw std::runtime_error("deadlock");
    }
    machine.end(launch);
    for (const std::size_t mine : {0, 128}) {
      if (std::to_integer<int>(flags[mine]) != 20) throw std::runtime_error("rounds are missing");
    }
  }
}

}  // namespace

Outcome run(const Module& module, const Setup& setup, std::uint64_t seed, int launches,
            std::uint64_t most_turns) {
  Outcome outcome;
  Memory memory;
  Machine machine(module, {.seed = seed,
                           .races = true,
                           .memory = [&](std::uint64_t at) { return memory.around(at); },
                           .found =
                               [&](const std::string& what) {
                                 if (outcome.findings.size() < 5) outcome.findings.push_back(what);
                               }});
  // A communicator that has failed is finished.
  const int most = setup.trouble == Trouble::none ? launches : 1;
  try {
    if (setup.ping) {
      run_ping(machine, memory, most, most_turns);
    } else {
      World(setup, machine, memory).run(most, most_turns);
    }
  } catch (const std::exception& error) {
    outcome.findings.emplace_back(error.what());
  }
  outcome.covered = machine.covered();
  outcome.turns = machine.turns();
  outcome.executed = machine.executed();
  return outcome;
}

}  // namespace ptx
