#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model/program/program.hpp"
#include "model/schedule/contract.hpp"
#include "schedules.hpp"

namespace chorus {
namespace {

using test::all_pairs;
using test::kAllKinds;
using test::random_schedule;
using test::recursive_doubling_all_reduce;
using test::ring_all_gather;
using test::ring_all_reduce;
using test::ring_reduce_scatter;
using test::samples;
using test::star;

std::string fault_in_any_form(const Schedule& schedule) {
  const auto programs = lower(schedule);
  for (const bool in_place : {false, true}) {
    for (const int slots : {2, 3, 4, 32}) {
      for (const int tiles : {1, 2, 3}) {
        if (const auto fault = first_fault(programs, slots, in_place, tiles)) {
          return *fault + " (slots " + std::to_string(slots) + ", tiles " + std::to_string(tiles) +
                 (in_place ? ", in place)" : ")");
        }
      }
    }
  }
  return "";
}

TEST(Lower, KeepsThePromiseOfHandWrittenSchedules) {
  for (const int n : {1, 2, 3, 4, 5, 8}) {
    EXPECT_EQ(fault_in_any_form(ring_all_reduce(n)), "") << n;
    EXPECT_EQ(fault_in_any_form(ring_all_gather(n, 3)), "") << n;
    EXPECT_EQ(fault_in_any_form(ring_reduce_scatter(n, 2)), "") << n;
    for (const auto kind :
         {CollectiveKind::all_reduce, CollectiveKind::all_gather, CollectiveKind::reduce_scatter,
          CollectiveKind::all_to_all, CollectiveKind::barrier}) {
      EXPECT_EQ(fault_in_any_form(all_pairs(kind, n)), "") << name_of(kind) << n;
    }
    for (const auto kind : {CollectiveKind::broadcast, CollectiveKind::reduce,
                            CollectiveKind::gather, CollectiveKind::scatter}) {
      EXPECT_EQ(fault_in_any_form(star(kind, n, n - 1, 2)), "") << name_of(kind) << n;
    }
  }
  EXPECT_EQ(fault_in_any_form(recursive_doubling_all_reduce(8, 3)), "");
}

TEST(Lower, KeepsThePromiseOfRandomSchedules) {
  for (const CollectiveKind kind : kAllKinds) {
    for (std::uint32_t seed = 0; seed < 150; ++seed) {
      const Schedule schedule = random_schedule(kind, 1 + static_cast<int>(seed % 8), seed);
      EXPECT_EQ(fault_in_any_form(schedule), "") << name_of(kind) << " seed " << seed;
    }
  }
}

TEST(Lower, GivesTheSameProgramsEveryTime) {
  for (const Schedule& schedule : samples()) EXPECT_EQ(lower(schedule), lower(schedule));
}

const Instruction& only(const Lane& lane) {
  EXPECT_EQ(lane.instructions.size(), 1U);
  return lane.instructions.front();
}

// The figure of merit of a ring: partial sums are never stored, they go on from where they are
// folded, and each channel is one lane.
TEST(Lower, RingsForwardWithoutStoring) {
  const auto programs = lower(ring_all_reduce(4));
  for (const Program& program : programs) {
    EXPECT_EQ(program.num_channels, 2);
    EXPECT_EQ(program.scratch_chunks, 0);
    ASSERT_EQ(program.lanes.size(), 2U);
    const auto& reduce = program.lanes[0].instructions;
    ASSERT_EQ(reduce.size(), 4U);  // send, 2 × receive, reduce and send on, receive and reduce
    EXPECT_EQ(reduce[0].sends.size(), 1U);
    for (const int i : {1, 2}) {
      EXPECT_FALSE(reduce[i].destination);
      EXPECT_EQ(reduce[i].sends.size(), 1U);
      EXPECT_EQ(reduce[i].sources.size(), 2U);
      EXPECT_FALSE(reduce[i].completes);
    }
    EXPECT_TRUE(reduce[3].destination);
    EXPECT_TRUE(reduce[3].completes);
    const auto& copy = program.lanes[1].instructions;
    ASSERT_EQ(copy.size(), 4U);  // send, 2 × receive and send on, receive
    EXPECT_EQ(copy[0].after, (std::vector<Dependency>{{0, 3}}));
    EXPECT_TRUE(copy[1].destination);
    EXPECT_EQ(copy[1].sends.size(), 1U);
    EXPECT_TRUE(copy[3].sends.empty());
  }
}

TEST(Lower, ARankFoldsInTheOrderOfRanks) {
  const auto programs = lower(all_pairs(CollectiveKind::all_reduce, 4));
  for (const Program& program : programs) {
    for (const Lane& lane : program.lanes) {
      const Instruction& instruction = lane.instructions.front();
      if (!instruction.destination) continue;
      ASSERT_EQ(instruction.sources.size(), 4U);
      for (int i = 0; i < 4; ++i) {
        const Operand& operand = instruction.sources[i];
        EXPECT_EQ(operand.incoming < 0 ? program.rank : program.incoming[operand.incoming].peer, i);
      }
      EXPECT_TRUE(instruction.completes);
    }
  }
}

TEST(Lower, NeighbouringChunksMakeOneMessage) {
  const auto programs = lower(star(CollectiveKind::broadcast, 3, 0, 8));
  for (const Lane& lane : programs[0].lanes) EXPECT_EQ(only(lane).count, 8);
  EXPECT_EQ(max_message_chunks(programs[1]), 8);
  EXPECT_EQ(max_message_chunks(lower(ring_all_gather(4, 3))[0]), 3);
}

// Bruck's and the doubling all_gather send the rank's own block together with received ones.
TEST(Lower, AnAllGatherThatDoublesSendsOneMessagePerStep) {
  Schedule schedule{.name = "recursive_doubling",
                    .collective = {CollectiveKind::all_gather, 0},
                    .world_size = 8,
                    .num_chunks = 8,
                    .steps = {}};
  for (int distance = 1; distance < 8; distance *= 2) {
    Step step;
    for (Rank r = 0; r < 8; ++r) {
      const int begin = r / distance * distance;
      for (int c = begin; c < begin + distance; ++c) {
        step.push_back({r, r ^ distance, c, Action::copy});
      }
    }
    schedule.steps.push_back(step);
  }
  EXPECT_EQ(fault_in_any_form(schedule), "");
  for (const Program& program : lower(schedule)) {
    std::size_t messages = 0;
    for (const Lane& lane : program.lanes) {
      for (const Instruction& instruction : lane.instructions) messages += instruction.sends.size();
    }
    EXPECT_EQ(messages, 3U);
  }
}

TEST(Lower, NeverWritesTheInput) {
  for (const Schedule& schedule : samples()) {
    for (const Program& program : lower(schedule)) {
      for (const Lane& lane : program.lanes) {
        for (const Instruction& instruction : lane.instructions) {
          if (instruction.destination) {
            EXPECT_NE(instruction.destination->buffer, Buffer::input);
          }
        }
      }
    }
  }
}

// Every rank sends three chunks that do not lie side by side before it receives any: with two
// slots, one lane that both sends and receives would wait for itself round the ring.
TEST(Lower, DoesNotForwardWhereForwardingWouldDeadlock) {
  const int n = 4;
  const int k = 7;
  Schedule schedule{.name = "",
                    .collective = {CollectiveKind::all_gather, 0},
                    .world_size = n,
                    .num_chunks = n * k,
                    .steps = {}};
  for (int s = 0; s < n - 1; ++s) {
    for (const int parity : {0, 1}) {
      Step step;
      for (int b = 0; b < n; ++b) {
        for (int i = parity; i < k; i += 2) {
          step.push_back({(b + s) % n, (b + s + 1) % n, b * k + i, Action::copy});
        }
      }
      schedule.steps.push_back(step);
    }
  }
  ASSERT_EQ(first_fault(schedule), std::nullopt);
  EXPECT_EQ(fault_in_any_form(schedule), "");
}

// Chunks exchanged crosswise: what each rank sends first, the other receives last.
TEST(Lower, SendsInTheOrderOfChunksWithinAStep) {
  Schedule schedule{.name = "",
                    .collective = {CollectiveKind::all_reduce, 0},
                    .world_size = 2,
                    .num_chunks = 16,
                    .steps = {{}}};
  for (int c = 0; c < 16; c += 2) schedule.steps[0].push_back({0, 1, c, Action::reduce});
  for (int c = 14; c >= 0; c -= 2) schedule.steps[0].push_back({1, 0, c, Action::reduce});
  schedule.steps.push_back({});
  for (int c = 1; c < 16; c += 2) schedule.steps[1].push_back({0, 1, c, Action::reduce});
  for (int c = 15; c >= 0; c -= 2) schedule.steps[1].push_back({1, 0, c, Action::reduce});
  ASSERT_EQ(first_fault(schedule), std::nullopt);
  EXPECT_EQ(fault_in_any_form(schedule), "");
}

/// Rank 0 sends all chunks to 1 in one step, and every second one to 2.
Schedule lopsided(int chunks) {
  Schedule schedule{.name = "lopsided",
                    .collective = {.kind = CollectiveKind::broadcast, .root = 0},
                    .world_size = 3,
                    .num_chunks = chunks,
                    .steps = {{}, {}}};
  for (ChunkId c = 0; c < chunks; ++c) {
    schedule.steps[0].push_back({0, 1, c, Action::copy});
    if (c % 2 == 0) {
      schedule.steps[0].push_back({0, 2, c, Action::copy});
    } else {
      schedule.steps[1].push_back({1, 2, c, Action::copy});
    }
  }
  return schedule;
}

TEST(Lower, NoMessageHasFarMoreChunksThanThoseOfTheShortestPort) {
  const Schedule schedule = lopsided(200);
  EXPECT_EQ(fault_in_any_form(schedule), "");
  for (const Program& program : lower(schedule)) EXPECT_LE(max_message_chunks(program), 8);
  // Where all are long, they stay whole.
  EXPECT_EQ(max_message_chunks(lower(star(CollectiveKind::broadcast, 3, 0, 200))[0]), 200);
}

/// All-reduce of three ranks: of every second chunk 2 sends its part to 0 itself, of the others to
/// 1, which adds its own and sends both; 0 sends what comes of it to all.
Schedule relayed(int chunks) {
  Schedule schedule{.name = "relayed",
                    .collective = {.kind = CollectiveKind::all_reduce},
                    .world_size = 3,
                    .num_chunks = chunks,
                    .steps = {{}, {}, {}}};
  for (ChunkId c = 0; c < chunks; ++c) {
    schedule.steps[c % 2 == 0 ? 0 : 1].push_back({2, c % 2 == 0 ? 1 : 0, c, Action::reduce});
    schedule.steps[1].push_back({1, 0, c, Action::reduce});
    for (const Rank rank : {1, 2}) schedule.steps[2].push_back({0, rank, c, Action::copy});
  }
  return schedule;
}

TEST(Lower, ARelayThatSendsOtherMessagesTooDoesNotReceiveAllOfThemFirst) {
  const Schedule schedule = relayed(40);
  EXPECT_EQ(fault_in_any_form(schedule), "");
  const Program relay = lower(schedule)[1];
  for (const Lane& lane : relay.lanes) {
    bool receives = false, sends = false;
    for (const Instruction& instruction : lane.instructions) {
      const bool plain = instruction.sources.size() == 1 && instruction.sources[0].incoming < 0;
      receives = receives || !plain;
      sends = sends || (plain && !instruction.sends.empty());
    }
    EXPECT_FALSE(receives && sends) << "one would wait for the other";
  }
}

}  // namespace
}  // namespace chorus
