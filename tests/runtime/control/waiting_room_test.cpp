// Who waits to be taken in, and who gets which seat.
#include "runtime/control/coordinator/waiting_room.hpp"

#include <gtest/gtest.h>

namespace chorus {
namespace {

using std::chrono::milliseconds;
constexpr WaitingRoom::Time kStart{std::chrono::hours(1)};

TEST(WaitingRoom, GivesSeatsInTheOrderOfOldRanksAndThenToWhoComes) {
  WaitingRoom room;
  EXPECT_EQ(room.ask("b", 5, kStart), std::nullopt);
  EXPECT_EQ(room.ask("a", 7, kStart), std::nullopt);
  EXPECT_EQ(room.count(kStart), 2);
  room.offer({.place = "here", .first = 3, .world_size = 6}, kStart);
  EXPECT_EQ(room.count(kStart), 0);
  EXPECT_EQ(room.ask("a", 7, kStart), (WaitingRoom::Seat{"here", 4, 6}));
  EXPECT_EQ(room.ask("b", 5, kStart), (WaitingRoom::Seat{"here", 3, 6}));
  EXPECT_EQ(room.ask("c", 0, kStart), (WaitingRoom::Seat{"here", 5, 6}));
  EXPECT_EQ(room.ask("d", 0, kStart), std::nullopt);
  EXPECT_EQ(room.count(kStart), 1);
}

TEST(WaitingRoom, ForgetsWhoNoLongerAsks) {
  WaitingRoom room;
  EXPECT_EQ(room.ask("gone", 1, kStart), std::nullopt);
  const auto later = kStart + WaitingRoom::kAsksWithin + milliseconds(1);
  EXPECT_EQ(room.count(later), 0);
  EXPECT_EQ(room.ask("here", 2, later), std::nullopt);
  room.offer({.place = "there", .first = 2, .world_size = 3}, later);
  EXPECT_EQ(room.ask("gone", 1, later), std::nullopt);
  EXPECT_EQ(room.ask("here", 2, later), (WaitingRoom::Seat{"there", 2, 3}));
}

TEST(WaitingRoom, WaitsAgainWhoWasNotTakenIn) {
  WaitingRoom room;
  room.offer({.place = "first", .first = 1, .world_size = 2}, kStart);
  EXPECT_EQ(room.ask("a", 1, kStart), (WaitingRoom::Seat{"first", 1, 2}));
  EXPECT_EQ(room.ask("a", 1, kStart), std::nullopt);
  EXPECT_EQ(room.count(kStart), 1);
  room.offer({.place = "second", .first = 1, .world_size = 2}, kStart);
  EXPECT_EQ(room.ask("a", 1, kStart), (WaitingRoom::Seat{"second", 1, 2}));
}

}  // namespace
}  // namespace chorus
