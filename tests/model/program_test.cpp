#include "model/program.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "model/contract.hpp"
#include "schedules.hpp"

namespace chorus {
namespace {

using test::all_pairs;
using test::random_schedule;
using test::recursive_doubling_all_reduce;
using test::ring_all_gather;
using test::ring_all_reduce;
using test::ring_reduce_scatter;
using test::star;
using testing::HasSubstr;

constexpr CollectiveKind kAllKinds[] = {
    CollectiveKind::all_reduce, CollectiveKind::all_gather, CollectiveKind::reduce_scatter,
    CollectiveKind::all_to_all, CollectiveKind::broadcast,  CollectiveKind::reduce,
    CollectiveKind::gather,     CollectiveKind::scatter,    CollectiveKind::barrier,
};

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

std::vector<Schedule> samples() {
  std::vector<Schedule> result = {
      ring_all_reduce(4),        ring_all_gather(4, 2),
      ring_reduce_scatter(4, 2), recursive_doubling_all_reduce(8, 3),
      ring_all_reduce(2),        star(CollectiveKind::scatter, 4, 2, 2)};
  for (const CollectiveKind kind : kAllKinds) {
    for (std::uint32_t seed = 0; seed < 4; ++seed) {
      result.push_back(random_schedule(kind, 4 + static_cast<int>(seed % 2), seed + 100));
    }
  }
  return result;
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

std::vector<std::vector<Program>> dropped_sends(const std::vector<Program>& good) {
  std::vector<std::vector<Program>> result;
  for (std::size_t r = 0; r < good.size(); ++r) {
    for (std::size_t l = 0; l < good[r].lanes.size(); ++l) {
      for (std::size_t i = 0; i < good[r].lanes[l].instructions.size(); ++i) {
        if (good[r].lanes[l].instructions[i].sends.empty()) continue;
        result.push_back(good);
        result.back()[r].lanes[l].instructions[i].sends.pop_back();
      }
    }
  }
  return result;
}

TEST(ProgramFault, NoticesADroppedSend) {
  for (const Schedule& schedule : samples()) {
    for (const auto& programs : dropped_sends(lower(schedule))) {
      EXPECT_NE(first_fault(programs, 4, false, 1), std::nullopt)
          << name_of(schedule.collective.kind);
    }
  }
}

TEST(ProgramFault, NoticesAWrongRangeSourceOrMissingDivision) {
  for (const Schedule& schedule : samples()) {
    const auto good = lower(schedule);
    const bool barrier = schedule.collective.kind == CollectiveKind::barrier;
    for (std::size_t r = 0; r < good.size(); ++r) {
      for (std::size_t l = 0; l < good[r].lanes.size(); ++l) {
        for (std::size_t i = 0; i < good[r].lanes[l].instructions.size(); ++i) {
          SCOPED_TRACE(std::string(name_of(schedule.collective.kind)) + " rank " +
                       std::to_string(r) + " lane " + std::to_string(l) + " instruction " +
                       std::to_string(i));
          const auto spoiled = [&](auto spoil) {
            auto programs = good;
            spoil(programs[r].lanes[l].instructions[i]);
            return first_fault(programs, 4, false, 1);
          };
          const Instruction& instruction = good[r].lanes[l].instructions[i];
          EXPECT_NE(spoiled([](Instruction& x) { ++x.count; }), std::nullopt);
          EXPECT_NE(spoiled([](Instruction& x) { x.sources.clear(); }), std::nullopt);
          if (instruction.completes && !barrier) {
            EXPECT_NE(spoiled([](Instruction& x) { x.completes = false; }), std::nullopt);
          }
          if (instruction.sources.size() > 1 && !barrier) {
            EXPECT_NE(spoiled([](Instruction& x) { x.sources.pop_back(); }), std::nullopt);
          }
          if (instruction.destination) {
            EXPECT_NE(spoiled([](Instruction& x) { x.destination.reset(); }), std::nullopt);
          }
        }
      }
    }
  }
}

TEST(ProgramFault, NoticesSwappedInstructions) {
  int swapped = 0;
  int noticed = 0;
  for (const Schedule& schedule : samples()) {
    const auto good = lower(schedule);
    for (std::size_t r = 0; r < good.size(); ++r) {
      for (std::size_t l = 0; l < good[r].lanes.size(); ++l) {
        for (std::size_t i = 1; i < good[r].lanes[l].instructions.size(); ++i) {
          auto programs = good;
          auto& lane = programs[r].lanes[l].instructions;
          // Two messages of one port must then come in the wrong order, whatever else happens.
          const bool same_port = !lane[i].sends.empty() && lane[i].sends == lane[i - 1].sends;
          std::swap(lane[i], lane[i - 1]);
          const bool fault = first_fault(programs, 4, false, 2).has_value();
          EXPECT_TRUE(fault || !same_port) << name_of(schedule.collective.kind);
          ++swapped;
          noticed += fault;
        }
      }
    }
  }
  EXPECT_GT(swapped, 100);
  EXPECT_GT(noticed, swapped / 2);
}

/// True if `after` follows from lanes and other dependencies alone, by search.
bool implied(const Program& program, const Dependency& at, const Dependency& before) {
  // Reach `at` from an instruction that waits for `before` too, or, if no message of `before` is
  // sent from memory, from `before` itself.
  const auto& instructions = program.lanes;
  const Instruction& waited = instructions[before.lane].instructions[before.instruction];
  const bool sends =
      !waited.sends.empty() &&
      (waited.destination || (waited.sources.size() == 1 && waited.sources[0].incoming < 0));
  std::vector<Dependency> todo{at};
  std::vector<Dependency> seen;
  bool first = true;
  while (!todo.empty()) {
    const Dependency now = todo.back();
    todo.pop_back();
    if (std::find(seen.begin(), seen.end(), now) != seen.end()) continue;
    seen.push_back(now);
    if (!first && now == before && !sends) return true;
    for (const Dependency& d : instructions[now.lane].instructions[now.instruction].after) {
      if (first && d == before) continue;
      if (d == before) return true;
      todo.push_back(d);
    }
    if (now.instruction > 0) todo.push_back({now.lane, now.instruction - 1});
    first = false;
  }
  return false;
}

TEST(ProgramFault, NoticesARemovedDependencyUnlessOthersImplyIt) {
  int removed = 0;
  int unnoticed = 0;
  for (const Schedule& schedule : samples()) {
    const auto good = lower(schedule);
    for (std::size_t r = 0; r < good.size(); ++r) {
      for (std::size_t l = 0; l < good[r].lanes.size(); ++l) {
        for (std::size_t i = 0; i < good[r].lanes[l].instructions.size(); ++i) {
          const auto& after = good[r].lanes[l].instructions[i].after;
          for (std::size_t d = 0; d < after.size(); ++d) {
            const Dependency at{static_cast<int>(l), static_cast<int>(i)};
            if (implied(good[r], at, after[d])) continue;
            auto programs = good;
            auto& left = programs[r].lanes[l].instructions[i].after;
            left.erase(left.begin() + static_cast<std::ptrdiff_t>(d));
            ++removed;
            // In place is where most memory is shared; an early copy conflicts out of place only.
            const bool noticed = first_fault(programs, 4, true, 1).has_value() ||
                                 first_fault(programs, 4, false, 1).has_value();
            unnoticed += !noticed;
            EXPECT_TRUE(noticed) << name_of(schedule.collective.kind) << " " << schedule.name
                                 << " rank " << r << " lane " << l << " instruction " << i
                                 << " after lane " << after[d].lane << " instruction "
                                 << after[d].instruction;
          }
        }
      }
    }
  }
  EXPECT_GT(removed, 100);
  EXPECT_EQ(unnoticed, 0);
}

/// Ranks 0 and 1 swap one chunk of an all_to_all; both lanes are one.
std::vector<Program> crossed(bool receive_first) {
  std::vector<Program> programs;
  for (Rank r = 0; r < 2; ++r) {
    const Instruction copy{.chunk = r * 3,
                           .count = 1,
                           .sources = {{-1, {Buffer::input, r}}},
                           .destination = LocalRange{Buffer::output, r},
                           .sends = {},
                           .after = {}};
    const Instruction send{.chunk = r + 1,
                           .count = 1,
                           .sources = {{-1, {Buffer::input, 1 - r}}},
                           .destination = {},
                           .sends = {0},
                           .after = {}};
    const Instruction receive{.chunk = 2 - r,
                              .count = 1,
                              .sources = {{0, {}}},
                              .destination = LocalRange{Buffer::output, 1 - r},
                              .sends = {},
                              .after = {}};
    Program program{.name = "crossed",
                    .collective = {CollectiveKind::all_to_all, 0},
                    .world_size = 2,
                    .rank = r,
                    .num_chunks = 4,
                    .scratch_chunks = 0,
                    .num_channels = 1,
                    .incoming = {{1 - r, 0}},
                    .outgoing = {{1 - r, 0}},
                    .lanes = {}};
    if (receive_first) {
      program.lanes = {{{copy, receive, send}}};
    } else {
      program.lanes = {{{copy, send, receive}}};
    }
    programs.push_back(std::move(program));
  }
  return programs;
}

TEST(ProgramFault, NamesWhoWaitsForWhomInADeadlock) {
  EXPECT_EQ(first_fault(crossed(false), 1, false), std::nullopt);
  EXPECT_EQ(first_fault(crossed(true), 4, false),
            "deadlock: rank 0 lane 0 instruction 1 (tile 0) waits for a message from rank 1 on "
            "channel 0 (lane 0 there); rank 1 lane 0 instruction 1 (tile 0) waits for a message "
            "from rank 0 on channel 0 (lane 0 there)");
}

TEST(ProgramFault, CountsSlots) {
  // Two messages before either is received: one slot is too few.
  auto programs = lower(ring_all_reduce(2));
  EXPECT_EQ(first_fault(programs, 2, true), std::nullopt);
  programs = crossed(false);
  for (Program& program : programs) {
    auto& lane = program.lanes[0].instructions;
    lane.insert(lane.begin() + 1, lane[1]);
    lane.insert(lane.begin() + 3, lane[3]);
  }
  EXPECT_EQ(first_fault(programs, 2, false), std::nullopt);
  EXPECT_THAT(first_fault(programs, 1, false).value_or(""),
              HasSubstr("waits for a free slot to rank 1 on channel 0"));
}

TEST(ProgramFault, NamesTheBrokenPart) {
  struct Case {
    const char* expected;
    void (*spoil)(std::vector<Program>&);
  };
  const Case cases[] = {
      {"there are no programs", [](auto& p) { p.clear(); }},
      {"1 programs for 2 ranks", [](auto& p) { p.pop_back(); }},
      {"program 0 is of rank 1", [](auto& p) { std::swap(p[0], p[1]); }},
      {"the programs of ranks 0 and 1 are of different collectives",
       [](auto& p) { p[1].num_channels = 2; }},
      {"world size 0 is not", [](auto& p) { p[0].world_size = 0; }},
      {"rank 0: incoming port of rank 0, which is no peer",
       [](auto& p) { p[0].incoming[0].peer = 0; }},
      {"rank 0: outgoing port on channel 1, not in [0, 1)",
       [](auto& p) { p[0].outgoing[0].channel = 1; }},
      {"rank 0: two incoming ports of rank 1 on channel 0",
       [](auto& p) {
         p[0].incoming.push_back({1, 0});
       }},
      {"only one end of the port from rank 0 to rank 1",
       [](auto& p) {
         p[1].incoming.clear();
         p[1].lanes[0].instructions.pop_back();
       }},
      {"rank 0: lane 0 instruction 1: chunks [4, 5) are not in [0, 4)",
       [](auto& p) { p[0].lanes[0].instructions[1].chunk = 4; }},
      {"rank 0: lane 0 instruction 1: it has no source",
       [](auto& p) { p[0].lanes[0].instructions[1].sources.clear(); }},
      {"rank 0: lane 0 instruction 1: input[2, 3) is not in [0, 2)",
       [](auto& p) { p[0].lanes[0].instructions[1].sources[0].local.index = 2; }},
      {"rank 0: lane 0 instruction 0: it writes to the input",
       [](auto& p) { p[0].lanes[0].instructions[0].destination->buffer = Buffer::input; }},
      {"rank 0: lane 0 instruction 0: scratch[0, 1) is not in [0, 0)",
       [](auto& p) { p[0].lanes[0].instructions[0].destination->buffer = Buffer::scratch; }},
      {"rank 0: lane 0 instruction 1: outgoing port 3 does not exist",
       [](auto& p) { p[0].lanes[0].instructions[1].sends = {3}; }},
      {"rank 0: lane 1 instruction 0: incoming port 0 is used by lane 0, too",
       [](auto& p) { p[0].lanes.push_back({{p[0].lanes[0].instructions[2]}}); }},
      {"rank 0: lane 1 is empty", [](auto& p) { p[0].lanes.emplace_back(); }},
      {"it waits for lane 2 instruction 0, which is not there",
       [](auto& p) {
         p[0].lanes[0].instructions[1].after = {{2, 0}};
       }},
      {"rank 0 lane 0 instruction 1 (tile 0) reads chunk 1 from input[0], where chunk 0 lies",
       [](auto& p) { p[0].lanes[0].instructions[1].sources[0].local.index = 0; }},
      {"expects chunks [1, 2) from rank 0 on channel 0, but chunks [0, 1) come",
       [](auto& p) {
         p[0].lanes[0].instructions[1].chunk = 0;
         p[0].lanes[0].instructions[1].sources[0].local.index = 0;
       }},
      {"nobody takes 2 messages from rank 0 to rank 1 on channel 0",
       [](auto& p) {
         p[1].lanes[0].instructions.pop_back();
         p[1].outgoing = p[0].outgoing, p[1].outgoing[0].peer = 0;
       }},
      {"rank 0 ends with output[0], tile 0, that nothing has written",
       [](auto& p) { p[0].lanes[0].instructions.erase(p[0].lanes[0].instructions.begin()); }},
      {"rank 0 ends with output[0], tile 0, that should be chunk 0 but is chunk 2",
       [](auto& p) { p[0].lanes[0].instructions[2].destination->index = 0; }},
      {"reads scratch[0], which nothing has written",
       [](auto& p) {
         p[0].scratch_chunks = 1;
         p[0].lanes[0].instructions[1].sources[0].local = {Buffer::scratch, 0};
       }},
  };
  for (const Case& c : cases) {
    auto programs = crossed(false);
    c.spoil(programs);
    EXPECT_THAT(first_fault(programs, 4, false).value_or("no fault"), HasSubstr(c.expected));
  }
}

TEST(ProgramFault, SeesARaceBetweenLanes) {
  auto programs = lower(ring_all_reduce(4));
  programs[2].lanes[1].instructions[0].after.clear();
  EXPECT_NE(first_fault(programs, 4, false), std::nullopt);
  // In place only: the input is overwritten while a message may still need it.
  programs = lower(recursive_doubling_all_reduce(4));
  bool found = false;
  for (Lane& lane : programs[1].lanes) {
    for (Instruction& instruction : lane.instructions) {
      if (!instruction.destination || found) continue;
      ASSERT_FALSE(instruction.after.empty());
      instruction.after.clear();
      found = true;
    }
  }
  EXPECT_EQ(first_fault(programs, 4, false).value_or(""), "");
  EXPECT_THAT(first_fault(programs, 4, true).value_or(""), HasSubstr("with no order between them"));
}

TEST(ProgramFault, JudgesAnAllToAllOf64RanksInSeconds) {
  const Schedule schedule = all_pairs(CollectiveKind::all_to_all, 64);
  const auto begin = std::chrono::steady_clock::now();
  const auto programs = lower(schedule);
  const auto lowered = std::chrono::steady_clock::now();
  EXPECT_EQ(first_fault(programs, 4, true), std::nullopt);
  const auto end = std::chrono::steady_clock::now();
  const auto ms = [](auto d) {
    return static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(d).count());
  };
  RecordProperty("lower_ms", ms(lowered - begin));
  RecordProperty("judge_ms", ms(end - lowered));
  EXPECT_LT(ms(end - begin), 30'000) << "slow even for a sanitizer on a busy machine";
}

}  // namespace
}  // namespace chorus
