// How much of a GPU a call uses, by arithmetic: which blocks of a launch have work and which fold,
// how many bytes go other than 16 at a time, how often threads meet. Cuts and programs are those
// that run; that the count of them is right is seen where they do run.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "collectives/algorithms.hpp"
#include "device/cut.hpp"
#include "device/fake/fake_cuda.hpp"
#include "device/host_machine.hpp"
#include "device/image.hpp"
#include "device/interpreter.hpp"
#include "device_rank.hpp"
#include "model/program/direct.hpp"
#include "model/program/program.hpp"
#include "model/schedule/contract.hpp"

namespace chorus::device {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint32_t kBlocks = 32;  // of a launch on a GPU that no other rank shares
constexpr std::size_t kSlotBytes = 128 * 1024;

struct Sample {
  CollectiveKind kind = CollectiveKind::all_reduce;
  int ranks = 2;
  std::uint64_t bytes = 0;  ///< of one rank's larger buffer
  DataType type = DataType::float32;

  [[nodiscard]] std::uint64_t blocks() const {
    return num_blocks(kind, ranks) == 1 ? 1 : static_cast<std::uint64_t>(ranks);
  }
  [[nodiscard]] std::uint64_t count() const {
    return bytes / blocks() / static_cast<std::uint64_t>(size_of(type));
  }
  [[nodiscard]] std::string text() const {
    return fmt::format("{} of {} bytes of {} on {} ranks", name_of(kind), bytes, name_of(type),
                       ranks);
  }
};

/// What the blocks of one rank do, in bytes loaded.
struct Usage {
  std::vector<std::uint64_t> loaded;  ///< by block
  std::vector<std::uint64_t> folded;  ///< the same, by instructions that combine
  std::uint64_t scalar = 0;           ///< of all that is loaded, not 16 bytes at a time

  [[nodiscard]] static double share(const std::vector<std::uint64_t>& bytes) {
    const auto some = std::count_if(bytes.begin(), bytes.end(), [](auto b) { return b > 0; });
    return static_cast<double>(some) / kBlocks;
  }
  /// Of the block with the most, over the average.
  [[nodiscard]] static double imbalance(const std::vector<std::uint64_t>& bytes) {
    const auto sum = std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0});
    return static_cast<double>(*std::max_element(bytes.begin(), bytes.end())) * kBlocks /
           static_cast<double>(sum);
  }
  [[nodiscard]] double scalar_share() const {
    const auto sum = std::accumulate(loaded.begin(), loaded.end(), std::uint64_t{0});
    return sum == 0 ? 0 : static_cast<double>(scalar) / static_cast<double>(sum);
  }
  void add(std::uint32_t block, std::uint64_t bytes, std::uint64_t sources, bool aligned) {
    loaded[block] += bytes * sources;
    if (sources > 1) folded[block] += bytes * sources;
    scalar += (aligned ? bytes % 16 : bytes) * sources;
  }
};

Schedule schedule_of(const Sample& sample) {
  const bool for_all =
      sample.kind == CollectiveKind::all_reduce || sample.kind == CollectiveKind::reduce;
  return algorithm(for_all ? "two_shot" : "one_shot")
      .make({.kind = sample.kind, .world_size = sample.ranks, .levels = {}});
}

struct Prepared {
  Program program;
  CallArguments call{};
  Cut cut{};
};

Prepared prepare(const Sample& sample, const std::vector<Program>& programs, Rank rank,
                 const Limits& limits, const Shape& shape) {
  Prepared prepared{.program = programs[static_cast<std::size_t>(rank)]};
  const Figures figures = figures_of(programs, rank);
  prepared.call.count = sample.count();
  prepared.call.type = sample.type;
  static_cast<void>(cut(prepared.call, figures, shape, limits, false));
  prepared.cut = {prepared.call.count, prepared.call.tile_count, figures.chunks_per_block,
                  static_cast<std::uint32_t>(size_of(sample.type))};
  return prepared;
}

/// Where a place in the user's buffer begins, from a multiple of 16; slots are such themselves.
std::uint64_t offset(const Prepared& p, const LocalRange& range, int piece, std::uint64_t tile) {
  if (range.buffer == Buffer::scratch) return 0;
  const auto index = static_cast<std::uint32_t>(range.index + piece);
  return (index / p.cut.chunks * p.cut.count + tile * p.cut.tile_count +
          p.cut.begin(index % p.cut.chunks, p.cut.tile_elements(tile))) *
         p.cut.element;
}

void add_instruction(Usage& usage, std::uint32_t block, const Prepared& p,
                     const Instruction& instruction, std::uint64_t tile) {
  const std::uint64_t elements = p.cut.tile_elements(tile);
  for (int piece = 0; piece < instruction.count; ++piece) {
    const auto chunk = static_cast<std::uint32_t>(instruction.chunk + piece) % p.cut.chunks;
    const std::uint64_t bytes =
        (p.cut.begin(chunk + 1, elements) - p.cut.begin(chunk, elements)) * p.cut.element;
    bool aligned = true;
    for (const Operand& source : instruction.sources) {
      aligned = aligned && (source.incoming >= 0 || offset(p, source.local, piece, tile) % 16 == 0);
    }
    if (instruction.destination) {
      aligned = aligned && offset(p, *instruction.destination, piece, tile) % 16 == 0;
    }
    usage.add(block, bytes, instruction.sources.size(), aligned);
  }
}

/// As Interpreter::collect() and advance() have it.
Usage usage_by_messages(const Sample& sample, Rank rank) {
  const std::vector<Program> programs = lower(schedule_of(sample));
  const Shape shape = shape_for(static_cast<std::size_t>(sample.ranks), kSlotBytes, kBlocks);
  const Prepared p = prepare(sample, programs, rank, {.blocks = kBlocks}, shape);
  const auto lanes = static_cast<std::uint32_t>(p.program.lanes.size());
  const std::uint32_t grid = std::min(kBlocks, lanes * p.call.instances);
  Usage usage{.loaded = std::vector<std::uint64_t>(grid),
              .folded = std::vector<std::uint64_t>(grid)};
  std::vector<std::uint32_t> works(grid);
  for (std::uint32_t w = 0; w < lanes * p.call.instances; ++w) {
    ++works[w % grid];
    const Lane& lane = p.program.lanes[w / p.call.instances];
    for (std::uint64_t tile = w % p.call.instances; tile < p.call.num_tiles;
         tile += p.call.instances) {
      for (const Instruction& instruction : lane.instructions) {
        add_instruction(usage, w % grid, p, instruction, tile);
      }
    }
  }
  EXPECT_LE(*std::max_element(works.begin(), works.end()), kMostWorks) << sample.text();
  EXPECT_LE(lanes * p.call.instances, kProgressSlots) << sample.text();
  return usage;
}

/// As Interpreter::make_move() has it.
Usage usage_directly(const Sample& sample, Rank rank) {
  const auto programs = direct(schedule_of(sample));
  const std::vector<Program> messages = lower(schedule_of(sample));
  const Shape shape = shape_for(static_cast<std::size_t>(sample.ranks), kSlotBytes, kBlocks);
  const Prepared p = prepare(sample, messages, rank, {.blocks = kBlocks}, shape);
  Usage usage{.loaded = std::vector<std::uint64_t>(kBlocks),
              .folded = std::vector<std::uint64_t>(kBlocks)};
  const Cut cut{p.cut.count, p.cut.count, p.cut.chunks, p.cut.element};
  for (const Move& move : (*programs)[static_cast<std::size_t>(rank)].moves) {
    const auto piece = static_cast<std::uint32_t>(move.chunk) % cut.chunks;
    const std::uint64_t bytes =
        (cut.begin(piece + static_cast<std::uint32_t>(move.count), cut.count) -
         cut.begin(piece, cut.count)) *
        cut.element;
    const std::uint64_t share = share_of_block(bytes, kBlocks);
    bool aligned = true;
    for (const auto* places : {&move.sources, &move.destinations}) {
      for (const Place& place : *places) {
        const auto index = static_cast<std::uint32_t>(place.index);
        aligned =
            aligned && (index / cut.chunks * cut.count + cut.begin(index % cut.chunks, cut.count)) *
                               cut.element % 16 ==
                           0;
      }
    }
    for (std::uint32_t b = 0; b < kBlocks; ++b) {
      const std::uint64_t begin = std::min(share * b, bytes);
      usage.add(b, std::min(share, bytes - begin), move.sources.size(), aligned);
    }
  }
  return usage;
}

bool combines(CollectiveKind kind) {
  return kind == CollectiveKind::all_reduce || kind == CollectiveKind::reduce ||
         kind == CollectiveKind::reduce_scatter;
}

constexpr std::array kKinds = {CollectiveKind::all_reduce,     CollectiveKind::all_gather,
                               CollectiveKind::reduce_scatter, CollectiveKind::all_to_all,
                               CollectiveKind::broadcast,      CollectiveKind::reduce,
                               CollectiveKind::gather,         CollectiveKind::scatter};

void expect_busy(const Sample& sample, const Usage& usage) {
  EXPECT_GE(Usage::share(usage.loaded), 0.9) << sample.text();
  EXPECT_LE(Usage::imbalance(usage.loaded), 1.25) << sample.text();
  EXPECT_LE(usage.scalar_share(), 0.02) << sample.text();
  if (!combines(sample.kind)) return;
  EXPECT_GE(Usage::share(usage.folded), 0.9) << sample.text();
  EXPECT_LE(Usage::imbalance(usage.folded), 1.25) << sample.text();
}

// Blocks that begin at multiples of 16 bytes, as allocators and paddings make them.
std::uint64_t rounded(const Sample& sample, std::uint64_t bytes) {
  return bytes / sample.blocks() / 16 * 16 * sample.blocks();
}

class Occupancy : public ::testing::TestWithParam<int> {};

TEST_P(Occupancy, LargeCallsKeepAllBlocksAtWorkAndFolding) {
  for (const CollectiveKind kind : kKinds) {
    for (const std::uint64_t size : {256 * kMiB, 100'000'000UL, 64 * kMiB, 1024 * kMiB + 48}) {
      for (const DataType type : {DataType::uint8, DataType::bfloat16, DataType::float64}) {
        Sample sample{.kind = kind, .ranks = GetParam(), .type = type};
        sample.bytes = rounded(sample, size);
        for (const Rank rank : {0, sample.ranks - 1}) {
          expect_busy(sample, usage_by_messages(sample, rank));
        }
      }
    }
  }
}

TEST_P(Occupancy, DirectCallsKeepAllBlocksAtWorkAndFolding) {
  for (const CollectiveKind kind : {CollectiveKind::all_reduce, CollectiveKind::reduce_scatter,
                                    CollectiveKind::all_gather, CollectiveKind::all_to_all}) {
    for (const std::uint64_t size : {256 * kMiB, 100'000'000UL, 4 * kMiB}) {
      Sample sample{.kind = kind, .ranks = GetParam(), .type = DataType::bfloat16};
      sample.bytes = rounded(sample, size);
      for (const Rank rank : {0, sample.ranks - 1})
        expect_busy(sample, usage_directly(sample, rank));
    }
  }
}

// What is cut into chunks is aligned whatever its length is.
TEST_P(Occupancy, CountsThatDivideByNothingStayOnTheWidePath) {
  for (const std::uint64_t count : {67'108'859UL, 16'777'213UL, 2'097'143UL}) {
    for (const DataType type : {DataType::uint8, DataType::bfloat16, DataType::float32}) {
      const Sample sample{.ranks = GetParam(),
                          .bytes = count * static_cast<std::uint64_t>(size_of(type)),
                          .type = type};
      EXPECT_LE(usage_by_messages(sample, 0).scalar_share(), 0.02) << sample.text();
      EXPECT_LE(usage_directly(sample, 0).scalar_share(), 0.02) << sample.text();
    }
  }
}

// Below, no message is shorter than a round of the wide path; as many blocks fold as there are
// such rounds in a chunk.
TEST_P(Occupancy, SmallerCallsFoldOnAsManyBlocksAsThereAreRounds) {
  for (const std::uint64_t size : {32 * kMiB, 8 * kMiB, 2 * kMiB, kMiB}) {
    const Sample sample{.ranks = GetParam(), .bytes = size, .type = DataType::float32};
    const Usage usage = usage_by_messages(sample, 0);
    const auto folding =
        std::count_if(usage.folded.begin(), usage.folded.end(), [](auto b) { return b > 0; });
    const std::uint64_t rounds = size / static_cast<std::uint64_t>(sample.ranks) / kRoundBytes;
    EXPECT_GE(static_cast<double>(folding),
              0.9 * static_cast<double>(std::clamp<std::uint64_t>(rounds, 1, kBlocks)))
        << sample.text();
  }
}

// Chunks of long calls are whole rounds, but for the last tile's.
TEST_P(Occupancy, ChunksOfLongCallsAreWholeRoundsOfTheWidePath) {
  for (const CollectiveKind kind : kKinds) {
    Sample sample{.kind = kind, .ranks = GetParam(), .type = DataType::bfloat16};
    sample.bytes = rounded(sample, 256 * kMiB);
    const Shape shape = shape_for(static_cast<std::size_t>(sample.ranks), kSlotBytes, kBlocks);
    const Prepared p = prepare(sample, lower(schedule_of(sample)), 0, {.blocks = kBlocks}, shape);
    EXPECT_EQ(p.cut.longest(p.cut.tile_count) * p.cut.element % kRoundBytes, 0U) << sample.text();
    EXPECT_LE(p.cut.longest(p.cut.tile_count) * p.cut.element, shape.slot_bytes[1]);
  }
}

TEST_P(Occupancy, AnArenaTakesNoMoreThanItsShare) {
  const Shape shape = shape_for(static_cast<std::size_t>(GetParam()), kSlotBytes, kBlocks);
  EXPECT_LE(Arena::size(shape), 160 * kMiB);
  EXPECT_EQ(shape.slot_bytes[1] % kRoundBytes, 0U);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Occupancy, ::testing::Range(2, 17),
                         [](const auto& param) { return std::to_string(param.param); });

// The counts above, of calls that do run
// -------------------------------------------------------------

/// A block that counts what the arithmetic claims to know.
struct Counts {
  std::uint64_t barriers = 0;
  std::uint64_t wide = 0;  ///< bytes loaded 16 at a time
};
class CountingMachine : public HostMachine {
 public:
  CountingMachine(BlockShared& shared, HostBlock& meeting, std::uint32_t block,
                  std::uint32_t blocks, Counts& counts)
      : HostMachine(shared, meeting, block, blocks), counts_(counts) {}
  void sync() {
    ++counts_.barriers;
    HostMachine::sync();
  }
  bool all(bool mine) {
    ++counts_.barriers;
    return HostMachine::all(mine);
  }
  bool any(bool mine) {
    ++counts_.barriers;
    return HostMachine::any(mine);
  }
  void load_pair(std::uint64_t from, std::uint64_t* words) {
    counts_.wide += 16;
    HostMachine::load_pair(from, words);
  }

 private:
  Counts& counts_;
};

/// The ranks of one machine, their kernels' blocks a thread each.
class Ranks {
 public:
  Ranks(const Sample& sample, std::uint32_t blocks, std::size_t slot_bytes)
      : sample_(sample),
        blocks_(blocks),
        shape_(shape_for(static_cast<std::size_t>(sample.ranks), slot_bytes, blocks)),
        programs_(lower(schedule_of(sample))),
        status_(static_cast<std::size_t>(sample.ranks)) {
    const auto n = static_cast<std::size_t>(sample.ranks);
    for (std::size_t r = 0; r < n; ++r) {
      arenas_.push_back(
          static_cast<std::byte*>(std::aligned_alloc(4096, round_up(Arena::size(shape_), 4096))));
      std::memset(arenas_.back(), 0, Arena::size(shape_));
      images_.push_back(flatten(programs_[r]));
      data_.emplace_back(sample.count(), static_cast<float>(r + 1));
    }
    for (std::size_t r = 0; r < n; ++r) tables_.push_back(table(r));
  }
  ~Ranks() {
    for (std::byte* const arena : arenas_) std::free(arena);
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  /// Runs the all-reduce in place. [rank][block].
  std::vector<std::vector<Counts>> run() {
    std::vector<std::vector<Counts>> counts(images_.size(), std::vector<Counts>(blocks_));
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < images_.size(); ++r) {
      for (std::uint32_t b = 0; b < blocks_; ++b) {
        threads.emplace_back([&, r, b] { run_block(r, b, counts[r][b]); });
      }
    }
    for (std::thread& thread : threads) thread.join();
    return counts;
  }
  [[nodiscard]] const std::vector<float>& data(std::size_t rank) const { return data_[rank]; }

 private:
  std::vector<std::byte> table(std::size_t rank) {
    std::vector<std::byte> bytes(table_bytes(shape_.ranks));
    auto* const table = reinterpret_cast<RankTable*>(bytes.data());
    table->shape = shape_;
    table->rank = static_cast<std::uint32_t>(rank);
    table->status = reinterpret_cast<std::uint64_t>(&status_[rank]);
    for (std::size_t r = 0; r < arenas_.size(); ++r) {
      table->arenas[r] = reinterpret_cast<std::uint64_t>(arenas_[r]);
      table->incoming[r] = reinterpret_cast<std::uint64_t>(arenas_[rank]) +
                           Arena::box(shape_, static_cast<std::uint32_t>(r));
      table->outgoing[r] = table->arenas[r] + Arena::box(shape_, table->rank);
      table->incoming_slots[r] = table->incoming[r];
      table->outgoing_slots[r] = table->outgoing[r];
    }
    return bytes;
  }

  void run_block(std::size_t rank, std::uint32_t b, Counts& counts) {
    Prepared p = prepare(sample_, programs_, static_cast<Rank>(rank),
                         {.blocks = blocks_, .words_bytes = 0}, shape_);
    p.call.program = reinterpret_cast<std::uint64_t>(images_[rank].words.data());
    p.call.input = p.call.output = reinterpret_cast<std::uint64_t>(data_[rank].data());
    p.call.tag = 77;
    p.call.divisor = 1;
    p.call.scale = 1;
    p.call.next = kLocal;
    const LaunchHead head{.table = reinterpret_cast<std::uint64_t>(tables_[rank].data()),
                          .timeout_ns = 60'000'000'000,
                          .num_calls = 1,
                          .num_phases = 1};
    const auto shared = std::make_unique<BlockShared>();
    HostBlock meeting(1);
    CountingMachine machine(*shared, meeting, b, blocks_, counts);
    Interpreter<CountingMachine>(machine, head, &p.call).run();
  }

  Sample sample_;
  std::uint32_t blocks_;
  Shape shape_;
  std::vector<Program> programs_;
  std::vector<HostStatus> status_;
  std::vector<std::byte*> arenas_;
  std::vector<Image> images_;
  std::vector<std::vector<std::byte>> tables_;
  std::vector<std::vector<float>> data_;
};

TEST(OccupancyRun, BlocksLoadWhatTheArithmeticSays) {
  for (const std::uint64_t count : {300'000UL, 300'001UL}) {
    const Sample sample{.ranks = 3, .bytes = count * sizeof(float), .type = DataType::float32};
    Ranks ranks(sample, 4, kRoundBytes);
    const auto counts = ranks.run();
    for (std::size_t r = 0; r < 3; ++r) {
      for (const float value : ranks.data(r)) ASSERT_EQ(value, 6.0F);
      // Each block folds a share of about a quarter.
      std::uint64_t sum = 0;
      std::uint64_t most = 0;
      for (const Counts& block : counts[r]) {
        EXPECT_GT(block.wide, 0U);
        sum += block.wide;
        most = std::max(most, block.wide);
      }
      EXPECT_LE(most, sum / 2);
    }
  }
}

/// Barriers of a block that sends `tiles` messages, for which there is room at the peer's.
std::uint64_t barriers_of_sends(std::uint32_t tiles) {
  const Shape shape = shape_for(2, kRoundBytes, 1);
  std::vector<std::byte> memory(Arena::size(shape) * 2 + 4096);
  HostStatus status{};
  std::vector<std::byte> bytes(table_bytes(2));
  auto* const table = reinterpret_cast<RankTable*>(bytes.data());
  table->shape = shape;
  table->status = reinterpret_cast<std::uint64_t>(&status);
  const std::uint64_t first = round_up(reinterpret_cast<std::uint64_t>(memory.data()), 4096);
  for (std::uint32_t r = 0; r < 2; ++r) {
    table->arenas[r] = first + r * Arena::size(shape);
    table->incoming[r] = table->incoming_slots[r] = first + Arena::box(shape, r);
    table->outgoing[r] = table->outgoing_slots[r] = table->arenas[r] + Arena::box(shape, 0);
  }
  const Image image = flatten(message_program(2, 0, 1, true));
  std::vector<std::uint32_t> data(std::size_t{tiles} * 100);
  CallArguments call{};
  call.program = reinterpret_cast<std::uint64_t>(image.words.data());
  call.input = reinterpret_cast<std::uint64_t>(data.data());
  call.count = data.size();
  call.tile_count = 100;
  call.num_tiles = tiles;
  call.instances = call.divisor = 1;
  call.scale = 1;
  call.next = kLocal;
  call.type = DataType::uint32;
  call.protocol = Protocol::bulk;
  const LaunchHead head{.table = reinterpret_cast<std::uint64_t>(table),
                        .timeout_ns = 60'000'000'000,
                        .num_calls = 1,
                        .num_phases = 1};
  const auto shared = std::make_unique<BlockShared>();
  HostBlock meeting(1);
  Counts counts;
  CountingMachine machine(*shared, meeting, 0, 1, counts);
  Interpreter<CountingMachine>(machine, head, &call).run();
  EXPECT_EQ(status.failure, 0U);
  return counts.barriers;
}

// Is it ready, is the job there, is it done, does nobody read the work any more, has it moved on.
TEST(OccupancyRun, AnInstructionHasFiveBarriersAndALaunchEightMore) {
  const std::uint64_t one = barriers_of_sends(1);
  for (std::uint32_t tiles = 2; tiles <= kMostSlots; ++tiles) {
    EXPECT_EQ(barriers_of_sends(tiles), one + 5 * (tiles - 1));
  }
  EXPECT_LE(one, 5U + 8U);
}

}  // namespace
}  // namespace chorus::device
