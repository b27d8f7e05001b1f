#include "model/program/program.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "model/schedule/contract.hpp"
#include "schedules.hpp"

namespace chorus {
namespace {

using test::all_pairs;
using test::recursive_doubling_all_reduce;
using test::ring_all_reduce;
using test::samples;
using testing::HasSubstr;

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

// Parts of an all-reduce are held back for what comes before them: that must not need them.
TEST(ProgramFault, SeesAPartThatIsHeldBackForItsOwnSum) {
  auto programs = lower(recursive_doubling_all_reduce(2, 1));
  ASSERT_EQ(first_fault(programs, 2, false), std::nullopt);
  const auto put_off = [&](int steps) {
    int parts = 0;
    for (Program& program : programs) {
      for (Lane& lane : program.lanes) {
        for (Instruction& instruction : lane.instructions) {
          if (!held_to_steps(program, instruction)) continue;
          ++parts;
          instruction.step += steps;
        }
      }
    }
    return parts;
  };
  EXPECT_EQ(put_off(kLeastRunAhead), 2);
  EXPECT_EQ(first_fault(programs, 2, false), std::nullopt);
  EXPECT_EQ(put_off(1), 2);
  EXPECT_THAT(first_fault(programs, 2, false).value_or(""), HasSubstr(", of an earlier step"));
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
      {"1 program for 2 ranks", [](auto& p) { p.pop_back(); }},
      {"program 0 is of rank 1", [](auto& p) { std::swap(p[0], p[1]); }},
      {"the programs of ranks 0 and 1 are of different collectives",
       [](auto& p) { p[1].num_channels = 2; }},
      {"world size 0 is not", [](auto& p) { p[0].world_size = 0; }},
      {"rank 0: incoming port of rank 0, which is not a peer",
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
      {"no instruction receives 2 messages from rank 0 to rank 1 on channel 0",
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
