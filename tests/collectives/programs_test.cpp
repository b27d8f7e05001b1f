// The programs that schedules are cut into finish, without deadlock and with the right result.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "model/program/program.hpp"
#include "tests/collectives/cases.hpp"

namespace chorus {
namespace {

void prove_programs(const Schedule& schedule, const std::string& what) {
  const std::vector<Program> programs = lower(schedule);
  ASSERT_EQ(static_cast<int>(programs.size()), schedule.world_size) << what;
  for (const int slots : {2, 4}) {
    for (const bool in_place : {false, true}) {
      ASSERT_EQ(first_fault(programs, slots, in_place), std::nullopt)
          << what << ", " << slots << " slots" << (in_place ? ", in place" : "");
    }
  }
}

TEST(Programs, OfEveryScheduleUpTo9RanksFinishWithTheRightResult) {
  for (int n = 1; n <= 9; ++n) for_each_schedule(n, all_hierarchies(n), prove_programs);
}

TEST(Programs, OfEveryScheduleOn16RanksFinishWithTheRightResult) {
  for_each_schedule(16, {{4, 4}, {2, 2, 4}}, prove_programs);
}

/// The most chunks of any message that the program sends.
int longest_sent(const Program& program) {
  int most = 0;
  for (const Lane& lane : program.lanes) {
    for (const Instruction& instruction : lane.instructions) {
      if (!instruction.sends.empty()) most = std::max(most, instruction.count);
    }
  }
  return most;
}

// Above some size ranks lower compact forms alone, and nobody ever sees all programs: that they fit
// together, with the fewest slots and in place, is shown here for all of smaller groups.
TEST(Programs, ThatRanksLowerAloneFromCompactFormsFitTogether) {
  const auto prove_alone = [](const Schedule& schedule, const std::string& what) {
    std::vector<Program> programs;
    for (Rank rank = 0; rank < schedule.world_size; ++rank) {
      LoweredAlone alone = lower_alone(schedule, rank);
      ASSERT_LE(longest_sent(alone.program), alone.longest_message) << what;
      programs.push_back(std::move(alone.program));
    }
    for (const bool in_place : {false, true}) {
      ASSERT_EQ(first_fault(programs, 2, in_place), std::nullopt)
          << what << (in_place ? ", in place" : "");
    }
  };
  for (int n = 1; n <= 9; ++n) for_each_schedule(n, all_hierarchies(n), prove_alone, true);
  for (const int n : {12, 16, 18}) for_each_schedule(n, all_hierarchies(n), prove_alone, true);
  for_each_schedule(32, {{4, 8}, {2, 4, 4}}, prove_alone, true);
}

TEST(Programs, OfCompactFormsSendAsFewMessagesAsOthers) {
  using enum CollectiveKind;
  const auto most_sent = [](const char* name, CollectiveKind kind, int n) {
    const Schedule schedule = algorithm(name).make({kind, n, {}, true});
    std::size_t most = 0;
    for (Rank rank = 0; rank < n; ++rank) {
      std::size_t sent = 0;
      for (const Lane& lane : lower_alone(schedule, rank).program.lanes) {
        for (const Instruction& instruction : lane.instructions) sent += instruction.sends.size();
      }
      most = std::max(most, sent);
    }
    return most;
  };
  EXPECT_EQ(most_sent("recursive_doubling", all_gather, 64), 6U);
  EXPECT_EQ(most_sent("recursive_halving", reduce_scatter, 64), 6U);
  EXPECT_EQ(most_sent("recursive_halving_doubling", all_reduce, 64), 12U);
  EXPECT_EQ(most_sent("bruck", all_gather, 64), 11U);  // a run that wraps around is two messages
  EXPECT_EQ(most_sent("ring", all_gather, 64), 63U);
}

/// Messages that leave all ranks in one tile.
std::size_t messages(const std::vector<Program>& programs) {
  std::size_t count = 0;
  for (const Program& program : programs) {
    for (const Lane& lane : program.lanes) {
      for (const Instruction& instruction : lane.instructions) count += instruction.sends.size();
    }
  }
  return count;
}

TEST(Programs, NeighbouringChunksShareAMessage) {
  using enum CollectiveKind;
  const auto sent = [](const char* name, CollectiveKind kind) {
    return messages(lower(algorithm(name).make({kind, 8, {}})));
  };
  EXPECT_EQ(sent("recursive_doubling", all_gather), 8U * 3);
  EXPECT_EQ(sent("recursive_halving", reduce_scatter), 8U * 3);
}

}  // namespace
}  // namespace chorus
