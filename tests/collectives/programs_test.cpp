// The programs that schedules are cut into finish, without deadlock and with the right result.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "model/program.hpp"
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
