// Ranks learn of every failure by name, and of each other's goodbye. Ranks are threads here; as
// processes that are killed, in control_kill_test.cpp.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "base/host.hpp"
#include "base/index.hpp"
#include "chorus/communicator.hpp"
#include "control_harness.hpp"
#include "runtime/control/control.hpp"
#include "runtime/control/coordinator/call_number.hpp"

namespace chorus {
namespace {

using namespace testing_control;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using wire::Type;
using wire::Writer;

TEST(Verdict, CallsThatDifferAreNamedWithBothSignatures) {
  auto controls = join_all(UniqueId::make(3).text, 3);
  for (auto& control : controls) control->open_group("g", all_ranks(3));
  controls[2]->report_waiting("g", 17, "broadcast(count 1000, float32, root 0)", 0);
  EXPECT_EQ(verdict_within(*controls[2], "g", 50), "no verdict");
  controls[0]->report_waiting("g", 17, "all_reduce(count 1000, float32, sum)", 2);
  for (auto& control : controls) {
    EXPECT_EQ(verdict_within(*control, "g", 2000),
              "rank 0 called all_reduce(count 1000, float32, sum) but rank 2 called "
              "broadcast(count 1000, float32, root 0) as call 17 of this communicator");
  }
  leave_all(controls);
}

TEST(Verdict, EqualCallsAreNone) {
  auto controls = join_all(UniqueId::make(3).text, 3);
  for (auto& control : controls) control->open_group("g", all_ranks(3));
  for (std::uint64_t call = 0; call < 200; ++call) {
    for (auto& control : controls) {
      control->report_waiting("g", call, fmt::format("all_reduce(count {})", call), -1);
    }
  }
  for (auto& control : controls) EXPECT_EQ(verdict_within(*control, "g", 100), "no verdict");
  leave_all(controls);
}

TEST(Verdict, ATimeoutCanSayWhoIsMissing) {
  auto controls = join_all(UniqueId::make(4).text, 4);
  for (auto& control : controls) control->open_group("g", all_ranks(4));
  controls[2]->report_waiting("g", 16, "barrier", -1);
  controls[1]->report_waiting("g", 17, "barrier", -1);
  EXPECT_EQ(controls[0]->who_is_missing("g", 17), "");
  const std::string expected = fmt::format(
      "rank 2 has not reported it: its last reported call is 16; rank 3 (pid {} on {}) has never "
      "waited for long, so it has reported no call: it computes, or stands still",
      ::getpid(), host_name());
  const auto end = Clock::now() + milliseconds(kPatience_ms);
  // Said again, like by a rank that goes on waiting: the others' reports may arrive later.
  while (controls[0]->who_is_missing("g", 17) != expected && Clock::now() < end) {
    controls[0]->report_waiting("g", 17, "barrier", -1);
    (void)controls[0]->await_verdict("g", 20);
  }
  EXPECT_EQ(controls[0]->who_is_missing("g", 17), expected);
  EXPECT_EQ(controls[0]->with_missing("too late", "g", 17), "too late; " + expected);
  EXPECT_EQ(controls[0]->who_is_missing("g", 18), "");
  EXPECT_EQ(controls[0]->with_missing("too late", "g", 18), "too late");
  leave_all(controls);
}

TEST(Verdict, ATimeoutSaysWhoWaitsInAMessageInstead) {
  auto controls = join_all(UniqueId::make(2).text, 2);
  for (auto& control : controls) control->open_group("g", all_ranks(2));
  const std::string message = "message(count 1, int32) from rank 0 to rank 1";
  const auto says = [&](const std::string& expected) {
    const auto end = Clock::now() + milliseconds(kPatience_ms);
    while (controls[0]->who_is_missing("g", 17) != expected && Clock::now() < end) {
      controls[0]->report_waiting("g", 17, "barrier", -1);
      (void)controls[0]->await_verdict("g", 20);
    }
    EXPECT_EQ(controls[0]->who_is_missing("g", 17), expected);
  };
  controls[1]->report_waiting("g", 16, "barrier", -1);
  controls[1]->report_waiting("g", MessageNumber{.from = 0, .to = 1, .index = 1}.pack(), message,
                              0);
  says("rank 1 has not reported it: it last waited in " + message);
  controls[1]->report_waiting("g", 16, "barrier", -1);
  says("rank 1 has not reported it: its last reported call is 16");
  leave_all(controls);
}

TEST(Verdict, AnAbortFromAnotherThreadReachesAllButOtherGroups) {
  auto controls = join_all(UniqueId::make(4).text, 4);
  const std::vector<Rank> pair{3, 1}, other{0, 2};
  for (const Rank rank : pair) controls[at(rank)]->open_group("pair", pair);
  for (const Rank rank : other) controls[at(rank)]->open_group("other", other);
  std::thread aborter([&] {
    std::this_thread::sleep_for(milliseconds(50));
    controls[1]->abort("pair", "the loss is not a number");
  });
  const auto start = Clock::now();
  for (const Rank rank : pair) {
    EXPECT_EQ(verdict_within(*controls[at(rank)], "pair", 2000),
              "rank 1 aborted: the loss is not a number");
  }
  EXPECT_LT(Clock::now() - start, milliseconds(1000));
  aborter.join();
  EXPECT_EQ(verdict_within(*controls[0], "other", 50), "no verdict");
  leave_all(controls);
}

TEST(Verdict, TheFirstOneStandsAndIsTheSameEverywhere) {
  for (int round = 0; round < 20; ++round) {
    auto controls = join_all(UniqueId::make(4).text, 4);
    for (auto& control : controls) control->open_group("g", all_ranks(4));
    run_ranks(4, [&](Rank rank) {
      controls[at(rank)]->abort("g", fmt::format("by {}", rank));
      controls[at(rank)]->abort("g", "again");
    });
    const std::string first = verdict_within(*controls[0], "g", 2000);
    EXPECT_THAT(first, HasSubstr("aborted: by "));
    for (auto& control : controls) EXPECT_EQ(verdict_within(*control, "g", 2000), first);
    leave_all(controls);
  }
}

TEST(Verdict, ReachesAMemberThatOpensItsGroupLater) {
  auto controls = join_all(UniqueId::make(2).text, 2);
  controls[0]->open_group("g", all_ranks(2));
  controls[0]->abort("g", "early");
  EXPECT_EQ(verdict_within(*controls[0], "g", 2000), "rank 0 aborted: early");
  std::this_thread::sleep_for(milliseconds(20));
  controls[1]->poll();
  controls[1]->open_group("g", all_ranks(2));
  EXPECT_EQ(verdict_within(*controls[1], "g", 2000), "rank 0 aborted: early");
  leave_all(controls);
}

TEST(Verdict, ALostConnectionBetweenLivingRanksIsBlamedOnNeitherAlone) {
  auto controls = join_all(UniqueId::make(3).text, 3);
  const std::vector<Rank> members{2, 0, 1};
  for (auto& control : controls) control->open_group("g", members);
  controls[0]->report_lost("g", 2, "Connection reset by peer");
  for (auto& control : controls) {
    EXPECT_THAT(
        verdict_within(*control, "g", 2000),
        AllOf(HasSubstr("rank 1 (world rank 0) lost its connection to rank 2 (world rank 1, "
                        "pid "),
              HasSubstr("though both are alive: Connection reset by peer")));
  }
  leave_all(controls);
}

TEST(Verdict, ALostConnectionIsExplainedByTheDeathBehindIt) {
  const std::string id = UniqueId::make(3).text;
  Raw dying(id);
  std::vector<std::string> verdicts(2);
  run_ranks(3, [&](Rank rank) {
    if (rank == 2) {
      dying.join(2, 3);
      dying.close();
      return;
    }
    const auto control = Control::join(id, rank, 3, kPatience_ms);
    control->open_group("g", all_ranks(3));
    // Before or after the death is known.
    if (rank == 0) control->report_lost("g", 2, "Connection reset by peer");
    verdicts[at(rank)] = verdict_within(*control, "g", 2000);
    EXPECT_EQ(verdict_within(*control, "g", 2000), verdicts[at(rank)]);
  });
  for (const auto& verdict : verdicts) {
    EXPECT_EQ(verdict, "rank 2 (pid 4242 on elsewhere) died: its connection closed");
  }
}

TEST(Verdict, ADeathIsToldFromAnAbortThatCameBeforeIt) {
  const std::string id = UniqueId::make(3).text;
  Raw dying(id);
  std::atomic<int> unaware = 2;
  run_ranks(3, [&](Rank rank) {
    if (rank == 2) {
      dying.join(2, 3);
      unaware.wait(2);
      unaware.wait(1);
      dying.close();
      return;
    }
    const auto control = Control::join(id, rank, 3, kPatience_ms);
    control->open_group("g", all_ranks(3));
    if (rank == 0) control->abort("g", "left because of an exception");
    EXPECT_THAT(verdict_within(*control, "g", 2000), HasSubstr("rank 0 aborted: left because"));
    EXPECT_EQ(control->await_death("g", 50), std::nullopt);
    --unaware;
    unaware.notify_all();
    EXPECT_EQ(control->await_death("g", kPatience_ms),
              "rank 2 (pid 4242 on elsewhere) died: its connection closed");
    control->close_group("g");
  });
}

TEST(Verdict, ADeathHitsExactlyTheGroupsOfTheDead) {
  const std::string id = UniqueId::make(4).text;
  Raw dying(id);
  run_ranks(4, [&](Rank rank) {
    if (rank == 3) {
      dying.join(3, 4);
      std::this_thread::sleep_for(milliseconds(100));
      dying.close();
      return;
    }
    const auto control = Control::join(id, rank, 4, kPatience_ms);
    const std::vector<Rank> with{0, 3, 2}, without{0, 1, 2};
    control->open_group("without", without);
    if (rank != 1) {
      control->open_group("with", with);
      EXPECT_EQ(verdict_within(*control, "with", 2000),
                "rank 1 (world rank 3, pid 4242 on elsewhere) died: its connection closed");
    }
    EXPECT_EQ(verdict_within(*control, "without", 300), "no verdict");
    // Those without the dead go on.
    const auto all = control->exchange("after", without, bytes_of("x"), kPatience_ms);
    EXPECT_EQ(all.size(), 3u);
    EXPECT_THROW((void)control->exchange("with the dead", all_ranks(4), {}, 2000), BootstrapError);
    control->close_group("with");
    control->close_group("without");
  });
}

TEST(Verdict, ARankThatLeavesBecauseOfAFailureIsNotBlamedForIt) {
  const std::string id = UniqueId::make(4).text;
  Raw dying(id);
  std::vector<std::string> verdicts(3);
  run_ranks(4, [&](Rank rank) {
    if (rank == 3) {
      dying.join(3, 4);
      std::this_thread::sleep_for(milliseconds(100));
      dying.close();
      return;
    }
    const auto control = Control::join(id, rank, 4, kPatience_ms);
    control->open_group("g", all_ranks(4));
    if (rank == 1) {  // busy: looks only after the others have left
      std::this_thread::sleep_for(milliseconds(500));
    }
    verdicts[at(rank)] = verdict_within(*control, "g", 2000);
  });
  for (const auto& verdict : verdicts) {
    EXPECT_EQ(verdict, "rank 3 (pid 4242 on elsewhere) died: its connection closed");
  }
}

TEST(Verdict, ManyThreadsOfOneRankMayUseItsControl) {
  auto controls = join_all(UniqueId::make(2).text, 2);
  for (auto& control : controls) control->open_group("g", all_ranks(2));
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      while (!stop) {
        controls[0]->poll();
        (void)controls[0]->verdict("g");
      }
    });
  }
  const auto errors = run_ranks(2, [&](Rank rank) {
    for (int round = 0; round < 50; ++round) {
      (void)controls[at(rank)]->exchange(fmt::format("{}", round), all_ranks(2), bytes_of("abc"),
                                         kPatience_ms);
      controls[at(rank)]->report_waiting("g", static_cast<std::uint64_t>(round), "barrier", -1);
    }
    if (rank == 1) controls[at(rank)]->abort("g", "enough");
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
  EXPECT_EQ(verdict_within(*controls[0], "g", 2000), "rank 1 aborted: enough");
  stop = true;
  for (auto& thread : threads) thread.join();
  leave_all(controls);
}

TEST(Goodbye, TheHostOfTheCoordinatorStaysUntilTheOthersHaveLeft) {
  const std::string id = UniqueId::make(2).text;
  Raw other(id);  // counts as another process
  auto control = std::shared_ptr<Control>();
  std::thread joiner([&] { control = Control::join(id, 0, 2, kPatience_ms); });
  EXPECT_EQ(other.enter(other.hello(1, 2)).second, "welcome");
  joiner.join();
  const auto start = Clock::now();
  std::thread leaver([&] {
    std::this_thread::sleep_for(milliseconds(300));
    other.send(Writer(Type::goodbye).text("").share());
  });
  control.reset();
  EXPECT_GE(Clock::now() - start, milliseconds(290));
  EXPECT_LT(Clock::now() - start, milliseconds(2000));
  leaver.join();
}

TEST(Goodbye, AJobThatEndedWellLeavesNoListener) {
  const std::string id = UniqueId::make(3).text;
  auto controls = join_all(id, 3);
  leave_all(controls);
  const auto start = Clock::now();
  while (Raw(id).connected() && Clock::now() - start < milliseconds(2000)) {
    std::this_thread::sleep_for(milliseconds(5));
  }
  EXPECT_FALSE(Raw(id).connected());
}

}  // namespace
}  // namespace chorus
