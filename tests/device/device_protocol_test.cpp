// The interpreter alone against a peer that is played by hand: what it must wait for, what it must
// not believe, and that it ends. And images: what flatten() refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "chorus/error.hpp"
#include "device/cut.hpp"
#include "device/fold.hpp"
#include "device/host_machine.hpp"
#include "device/image.hpp"
#include "device/twin.hpp"

namespace chorus::device {
namespace {

constexpr std::uint32_t kTag = 0xabcdef01;
constexpr std::uint32_t kCount = 100;  // uint32 elements

Program receiver() {
  Program program;
  program.name = "recv";
  program.collective = {.kind = CollectiveKind::broadcast, .root = 1};
  program.world_size = 2;
  program.num_chunks = 1;
  program.num_channels = 1;
  program.incoming.push_back({.peer = 1});
  Instruction instruction;
  instruction.sources.push_back({.incoming = 0});
  instruction.destination = LocalRange{.buffer = Buffer::output};
  program.lanes.push_back({.instructions = {instruction}});
  return program;
}

/// Rank 0 of two, receiving one message; the test is rank 1.
class Receiver {
 public:
  explicit Receiver(Protocol protocol) : protocol_(protocol), image_(flatten(receiver())) {
    shape_ = {.ranks = 2,
              .connections = 2,
              .word_connections = 2,
              .slots = 4,
              .slot_bytes = {1024, 1024}};
    for (auto& arena : arenas_) {
      arena =
          static_cast<std::byte*>(std::aligned_alloc(4096, round_up(Arena::size(shape_), 4096)));
      std::memset(arena, 0, Arena::size(shape_));
    }
    table_.resize(table_bytes(2));
    auto* const table = reinterpret_cast<RankTable*>(table_.data());
    table->shape = shape_;
    table->status = reinterpret_cast<std::uint64_t>(&status_);
    for (std::uint32_t r = 0; r < 2; ++r) {
      table->arenas[r] = reinterpret_cast<std::uint64_t>(arenas_[r]);
      table->incoming[r] = table->arenas[0] + Arena::box(shape_, r);
      table->outgoing[r] = table->arenas[r] + Arena::box(shape_, 0);
      table->incoming_slots[r] = table->incoming[r];
      table->outgoing_slots[r] = table->outgoing[r];
    }
  }
  ~Receiver() {
    for (auto* arena : arenas_) std::free(arena);
  }
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;

  Failure run(std::uint64_t timeout_ms = 60'000) {
    CallArguments call{};
    call.program = reinterpret_cast<std::uint64_t>(image_.words.data());
    call.output = reinterpret_cast<std::uint64_t>(output_.data());
    call.count = call.tile_count = kCount;
    call.num_tiles = call.instances = call.divisor = 1;
    call.tag = kTag;
    call.sequence = 7;
    call.next = kLocal;
    call.scale = 1.0;
    call.type = DataType::uint32;
    call.protocol = protocol_;
    const LaunchHead head{.table = reinterpret_cast<std::uint64_t>(table_.data()),
                          .timeout_ns = timeout_ms * 1'000'000,
                          .num_calls = 1,
                          .num_phases = 1};
    BlockShared* const block = shared_.get();
    run_on_host(head, &call, {&block, 1}, 1);
    return static_cast<Failure>(status_.failure);
  }

  /// The slot of message `position`, and the ring beside it.
  [[nodiscard]] std::uint64_t slot(std::uint64_t position) const {
    return reinterpret_cast<std::uint64_t>(arenas_[0]) + Arena::box(shape_, 1) +
           Box::slot(shape_, 0, protocol_, position);
  }
  [[nodiscard]] Ring& ring() const {
    return *reinterpret_cast<Ring*>(arenas_[0] + Arena::box(shape_, 1) +
                                    Box::ring(shape_, 0, protocol_));
  }
  /// What rank 0 tells rank 1 of messages taken.
  [[nodiscard]] std::uint64_t credit() const {
    return reinterpret_cast<Ring*>(arenas_[1] + Arena::box(shape_, 0) +
                                   Box::ring(shape_, 0, protocol_))
        ->credit;
  }
  /// Writes words [from, to) of message `number` (from 1) with `tag`; element i is i + 1000.
  void write_words(std::uint64_t number, std::uint32_t tag, std::uint32_t from, std::uint32_t to) {
    HostBlock block(1);
    HostMachine machine(*shared_, block, 0, 1);
    for (std::uint32_t unit = from; unit < to; ++unit) {
      const std::uint64_t word = (2 * unit + 1000) | std::uint64_t{2 * unit + 1001} << 32;
      Words::store(machine, Wire{slot(number - 1), words_flag(number, tag)}, unit, &word);
    }
  }
  void expect_data() const {
    for (std::uint32_t i = 0; i < kCount; ++i) ASSERT_EQ(output_[i], i + 1000) << i;
  }
  HostStatus& status() { return status_; }
  std::byte* arena(int rank) { return arenas_[rank]; }
  const Shape& shape() const { return shape_; }

 private:
  Protocol protocol_;
  Shape shape_{};
  Image image_;
  std::byte* arenas_[2];
  std::vector<std::byte> table_;
  HostStatus status_{};
  std::vector<std::uint32_t> output_ = std::vector<std::uint32_t>(kCount);
  std::unique_ptr<BlockShared> shared_ = std::make_unique<BlockShared>();
};

void later(const std::function<void()>& what) {
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  what();
}

TEST(DeviceProtocol, WordsAreWaitedForOneByOneWhateverTheirOrder) {
  Receiver receiver(Protocol::words);
  receiver.write_words(1, kTag, 25, 50);
  std::thread peer([&] { later([&] { receiver.write_words(1, kTag, 0, 25); }); });
  EXPECT_EQ(receiver.run(), Failure::none);
  peer.join();
  receiver.expect_data();
  EXPECT_EQ(receiver.credit(), 1U);
}

TEST(DeviceProtocol, BulkIsReadOnceItsCounterSaysSo) {
  Receiver receiver(Protocol::bulk);
  std::thread peer([&] {
    later([&] {
      auto* const data = reinterpret_cast<std::uint32_t*>(receiver.slot(0));
      for (std::uint32_t i = 0; i < kCount; ++i) data[i] = i + 1000;
      HostMachine::store_release(&receiver.ring().arrived[0], std::uint64_t{kTag} << 32 | 1);
    });
  });
  EXPECT_EQ(receiver.run(), Failure::none);
  peer.join();
  receiver.expect_data();
}

TEST(DeviceProtocol, WhatIsLeftOfEarlierMessagesIsNotBelieved) {
  Receiver receiver(Protocol::words);
  // The ring has gone round: messages 1 to 8 were taken, their words lie in the slots.
  for (std::uint64_t number = 1; number <= 8; ++number) receiver.write_words(number, kTag, 0, 50);
  receiver.ring().taken = 8;
  EXPECT_EQ(receiver.run(20), Failure::timeout);
  EXPECT_EQ(receiver.status().sequence, 7U);
  EXPECT_EQ(receiver.status().peer, 1U);
}

TEST(DeviceProtocol, AMessageOfAnotherCallIsAMismatch) {
  Receiver words(Protocol::words);
  words.write_words(1, kTag + 1, 0, 50);
  EXPECT_EQ(words.run(), Failure::mismatch);
  Receiver bulk(Protocol::bulk);
  bulk.ring().arrived[0] = std::uint64_t{kTag + 1} << 32 | 1;
  EXPECT_EQ(bulk.run(), Failure::mismatch);
  EXPECT_EQ(bulk.status().peer, 1U);
}

TEST(DeviceProtocol, AHalfWrittenMessageEndsWithTheTimeout) {
  Receiver receiver(Protocol::words);
  receiver.write_words(1, kTag, 0, 49);
  EXPECT_EQ(receiver.run(20), Failure::timeout);
}

TEST(DeviceProtocol, APeersFailureAndAnAbortEndTheWait) {
  Receiver poisoned(Protocol::bulk);
  std::thread peer([&] {
    later([&] {
      HostMachine::store_relaxed(&reinterpret_cast<ArenaHead*>(poisoned.arena(0))->poison, 2);
    });
  });
  EXPECT_EQ(poisoned.run(), Failure::poisoned);
  EXPECT_EQ(poisoned.status().peer, 1U);
  peer.join();

  Receiver aborted(Protocol::words);
  std::thread user([&] { later([&] { HostMachine::store_relaxed(&aborted.status().abort, 1); }); });
  EXPECT_EQ(aborted.run(), Failure::aborted);
  user.join();
  // Its peer is told.
  EXPECT_EQ(reinterpret_cast<ArenaHead*>(aborted.arena(1))->poison, 1U);
}

TEST(DeviceProtocol, ArenasHaveNoOverlaps) {
  for (const std::uint32_t ranks : {1U, 2U, 8U, 128U}) {
    const Shape shape{.ranks = ranks,
                      .connections = 2,
                      .word_connections = 1,
                      .slots = 4,
                      .slot_bytes = {512, 2048}};
    std::uint64_t end = sizeof(ArenaHead);
    const auto next = [&](std::uint64_t begin, std::uint64_t size) {
      ASSERT_GE(begin, end);
      ASSERT_EQ(begin % 128, 0U);
      end = begin + size;
    };
    for (std::uint64_t number = 0; number < 2; ++number) {
      for (std::uint32_t peer = 0; peer < ranks; ++peer) {
        next(Arena::offer(shape, number, peer), sizeof(Offer));
      }
    }
    for (std::uint32_t peer = 0; peer < ranks; ++peer) next(Arena::done(shape, peer), 128);
    next(Arena::progress(shape), kProgressSlots * 8);
    for (std::uint32_t peer = 0; peer < ranks; ++peer) {
      const std::uint64_t box = Arena::box(shape, peer);
      ASSERT_EQ(box % 4096, 0U);
      for (std::uint32_t i = 0; i < 2 * kNumProtocols; ++i) {
        next(box + Box::ring(shape, i / kNumProtocols, static_cast<Protocol>(i % kNumProtocols)),
             sizeof(Ring));
      }
      for (std::uint32_t i = 0; i < 4; ++i) {
        next(box + Box::slot(shape, 0, Protocol::words, i), shape.slot_bytes[0]);
      }
      for (std::uint32_t i = 0; i < 2 * 4; ++i) {
        next(box + Box::slot(shape, i / 4, Protocol::bulk, i % 4), shape.slot_bytes[1]);
      }
      ASSERT_LE(end, box + Box::size(shape));
    }
    EXPECT_LE(end, Arena::size(shape));
  }
}

TEST(DeviceImage, RefusesWhatIsOutOfRange) {
  const auto complaint = [](const std::function<void(Program&)>& damage) -> std::string {
    Program program = receiver();
    damage(program);
    try {
      static_cast<void>(flatten(program));
    } catch (const InputError& error) {
      return error.what();
    }
    return "none";
  };
  using ::testing::HasSubstr;
  auto first = [](Program& program) -> Instruction& { return program.lanes[0].instructions[0]; };
  EXPECT_EQ(complaint([](Program&) {}), "none");
  EXPECT_THAT(complaint([&](Program& p) { first(p).sources[0].incoming = 1; }),
              HasSubstr("a port"));
  EXPECT_THAT(complaint([](Program& p) { p.incoming[0].peer = 2; }), HasSubstr("a peer"));
  EXPECT_THAT(complaint([](Program& p) { p.incoming[0].channel = 1; }), HasSubstr("a channel"));
  EXPECT_THAT(complaint([&](Program& p) { first(p).chunk = 1; }), HasSubstr("a chunk"));
  EXPECT_THAT(complaint([&](Program& p) { first(p).count = 2; }), HasSubstr("chunks"));
  EXPECT_THAT(complaint([&](Program& p) { first(p).sources.clear(); }), HasSubstr("source"));
  EXPECT_THAT(complaint([&](Program& p) { first(p).destination->index = 1; }), HasSubstr("place"));
  EXPECT_THAT(complaint([&](Program& p) { first(p).after.push_back({1, 0}); }), HasSubstr("lane"));
  EXPECT_THAT(complaint([&](Program& p) {
                first(p).after.push_back({0, 5});
              }),
              HasSubstr("instruction"));
  EXPECT_THAT(complaint([&](Program& p) { p.lanes.push_back(p.lanes[0]); }),
              HasSubstr("another lane"));
}

// Lanes and ports beyond a block's room were dropped, and the ranks waited for them for ever.
TEST(DeviceImage, RoomIsCountedByLanesAndPortsOfEachBlock) {
  const std::vector<std::uint32_t> small(kMostWorks, 2);
  const std::vector<std::uint32_t> large(2, kMostPorts / 2 + 1);
  const auto fits = [](const std::vector<std::uint32_t>& ports, std::uint32_t instances,
                       std::uint32_t blocks) {
    const Placement call{.first_work = 1, .instances = instances, .ports = ports};
    return have_room({&call, 1}, blocks);
  };
  EXPECT_TRUE(fits(small, 1, 1));
  EXPECT_FALSE(fits(small, 2, 1));
  EXPECT_TRUE(fits(small, 2, 2));
  EXPECT_FALSE(fits(large, 1, 1));
  EXPECT_TRUE(fits(large, 1, 2));
  // The lanes of several calls of a phase add up.
  const Placement calls[] = {{.first_work = 0, .instances = 1, .ports = large},
                             {.first_work = 2, .instances = 1, .ports = large}};
  EXPECT_FALSE(have_room(calls, 2));
  EXPECT_TRUE(have_room(calls, 4));
  EXPECT_EQ(lane_ports(flatten(receiver())), std::vector<std::uint32_t>{1});
}

// Every chunk of every tile fits into its place, all elements are covered once.
TEST(DeviceImage, CutsCoverEveryElementWithinSlots) {
  const Shape shape{
      .ranks = 4, .connections = 8, .word_connections = 8, .slots = 4, .slot_bytes = {1024, 8192}};
  for (const DataType type : {DataType::uint8, DataType::bfloat16, DataType::float64}) {
    for (const std::uint32_t k : {1U, 3U, 7U}) {
      for (const std::uint32_t m : {1U, 2U}) {
        for (const std::uint64_t count : {0U, 1U, 5U, 300U, 4'099U, 100'000U}) {
          Figures figures;
          figures.chunks_per_block = k;
          figures.max_message_chunks = m;
          figures.scratch_chunks = 1;
          CallArguments call{};
          call.count = count;
          call.type = type;
          const Limits limits{.blocks = 8, .instances = 4, .words_bytes = 500};
          cut(call, figures, shape, limits, false);
          const Cut cutting{count, call.tile_count, k, static_cast<std::uint32_t>(size_of(type))};
          std::uint64_t covered = 0;
          for (std::uint64_t tile = 0; tile < call.num_tiles; ++tile) {
            const std::uint64_t elements = cutting.tile_elements(tile);
            EXPECT_LE(m * wire_bytes(call.protocol, cutting.longest(elements) * size_of(type)),
                      shape.slot_bytes[static_cast<std::size_t>(call.protocol)]);
            for (std::uint32_t chunk = 0; chunk < k; ++chunk) {
              const std::uint64_t begin = cutting.begin(chunk, elements);
              const std::uint64_t end = cutting.begin(chunk + 1, elements);
              ASSERT_LE(begin, end);
              ASSERT_LE(end - begin, cutting.longest(elements));
              ASSERT_LE((tile * (call.scratch_stride / call.num_tiles)) + (end - begin),
                        call.scratch_stride);
            }
            covered += elements;
          }
          EXPECT_EQ(covered, count);
          EXPECT_LE(call.instances, 4U);
        }
      }
    }
  }
}

}  // namespace
}  // namespace chorus::device
