// Who is to blame, with time in the test's hands: no sockets, no waiting.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "judge_harness.hpp"
#include "runtime/control/coordinator/call_number.hpp"
#include "runtime/control/coordinator/judge.hpp"

namespace chorus {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::StartsWith;
using wire::Type;
using wire::Writer;

TEST_F(JudgeTest, ADeathIsToldAtOnceWithoutALauncher) {
  enter_all_and_open(3, false);
  judge_->closed(1, "its connection closed", now_);
  pass(0);
  EXPECT_THAT(heard(), ::testing::ElementsAre("to 0: death 1 pid 101 on h: its connection closed",
                                              "to 2: death 1 pid 101 on h: its connection closed"));
}

TEST_F(JudgeTest, ALauncherIsGivenTimeToKnowTheCause) {
  enter_all_and_open(2, true);
  judge_->closed(1, "its connection closed", now_);
  pass(299);
  EXPECT_THAT(heard(), IsEmpty());
  judge_->ended(1, "killed by signal 9 (SIGKILL)", now_);
  pass(0);
  EXPECT_THAT(heard(),
              ::testing::ElementsAre("to 0: death 1 pid 101 on h: killed by signal 9 (SIGKILL)"));
}

TEST_F(JudgeTest, ALauncherThatSaysNothingIsNotWaitedForLong) {
  enter_all_and_open(2, true);
  judge_->closed(1, "its connection closed", now_);
  pass(300);
  EXPECT_THAT(heard(), ::testing::ElementsAre("to 0: death 1 pid 101 on h: its connection closed"));
}

TEST_F(JudgeTest, TheFirstConnectionToCloseIsTheCauseWhoeverIsReapedFirst) {
  enter_all_and_open(3, true);
  judge_->closed(2, "its connection closed", now_);
  pass(1);
  judge_->closed(1, "its connection closed", now_);  // crashed because of 2
  judge_->ended(1, "killed by signal 11 (SIGSEGV)", now_);
  pass(5);
  EXPECT_THAT(heard(), IsEmpty());
  judge_->ended(2, "killed by signal 9 (SIGKILL)", now_);
  pass(0);
  EXPECT_THAT(heard(),
              ::testing::ElementsAre("to 0: death 2 pid 102 on h: killed by signal 9 (SIGKILL)",
                                     "to 1: death 2 pid 102 on h: killed by signal 9 (SIGKILL)",
                                     "to 0: death 1 pid 101 on h: killed by signal 11 (SIGSEGV)"));
}

TEST_F(JudgeTest, AGoodbyeStillOnItsWayIsBelievedThoughTheProcessHasEnded) {
  enter_all_and_open(2, true);
  judge_->ended(1, "exited with status 0", now_);
  pass(100);
  say(1, Writer(Type::goodbye).text(""));
  judge_->closed(1, "its connection closed", now_);
  pass(10'000);
  EXPECT_THAT(heard(), ::testing::ElementsAre("to 1: close"));
}

TEST_F(JudgeTest, AHeartbeatSaysNothingBeforeTheGoodbyeAndAfterIt) {
  enter_all_and_open(2, true);
  say(1, Writer(Type::heartbeat));
  say(1, Writer(Type::goodbye).text(""));
  say(1, Writer(Type::heartbeat));
  judge_->closed(1, "its connection closed", now_);
  EXPECT_THAT(heard(), ::testing::ElementsAre("to 1: close"));
  EXPECT_THROW(say(0, Writer(Type::heartbeat).text("more")), wire::Malformed);
}

TEST_F(JudgeTest, AnEndedProcessWhoseConnectionStaysOpenIsDead) {
  enter_all_and_open(2, true);
  judge_->ended(1, "killed by signal 9 (SIGKILL)", now_);
  pass(499);
  EXPECT_THAT(heard(), IsEmpty());
  pass(1);
  EXPECT_THAT(heard(),
              ::testing::ElementsAre("to 0: death 1 pid 101 on h: killed by signal 9 (SIGKILL)"));
}

TEST_F(JudgeTest, AProcessThatEndsBeforeItJoinsFailsTheJoinForAllNowAndLater) {
  start(3, true);
  enter(0);
  judge_->ended(1, "exited with status 3", now_);
  pass(0);
  const std::string sentence = "rank 1 ended before it joined: exited with status 3";
  EXPECT_THAT(heard(), ::testing::ElementsAre("to 0: failed: " + sentence));
  wire::Hello late;
  late.rank = 2;
  EXPECT_EQ(judge_->admit(late, now_), sentence);
}

TEST_F(JudgeTest, AClaimWaitsForTheDeathBehindItHoweverLongThatIsLookedInto) {
  enter_all_and_open(3, true);
  say(0, Writer(Type::lost).text("g").i32(1).text("reset"));
  pass(290);
  judge_->closed(1, "its connection closed", now_);
  pass(20);
  EXPECT_THAT(heard(), IsEmpty()) << "the claim must not be settled first";
  pass(280);
  EXPECT_THAT(heard(), ::testing::ElementsAre("to 0: death 1 pid 101 on h: its connection closed",
                                              "to 2: death 1 pid 101 on h: its connection closed"));
}

// Whose relay, path or coordinator is gone may come by another one, or be dead.
TEST_F(JudgeTest, AClaimWaitsWhileItIsNotKnownWhetherTheOtherComesBack) {
  enter_all_and_open(3, false);
  judge_->note_relays();
  say(0, Writer(Type::lost).text("g").i32(1).text("reset"));
  judge_->scattered(1, now_);
  for (int i = 0; i < 3; ++i) {
    pass(299);
    for (const std::string& said : heard()) EXPECT_THAT(said, Not(HasSubstr("both are alive")));
  }
}

TEST_F(JudgeTest, AClaimBetweenTheLivingIsTheirOwnAffair) {
  enter_all_and_open(2, false);
  say(0, Writer(Type::lost).text("g").i32(1).text("reset"));
  pass(299);
  EXPECT_THAT(heard(), IsEmpty());
  pass(1);
  const auto all = heard();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_THAT(all[1], HasSubstr("to 1: verdict: rank 0 lost its connection to rank 1 (pid 101 on "
                                "h), though both are alive: reset"));
}

TEST_F(JudgeTest, AClaimOfWhoHasLeftMeanwhileIsNone) {
  enter_all_and_open(2, false);
  say(0, Writer(Type::lost).text("g").i32(1).text("reset"));
  say(0, Writer(Type::close_group).text("g"));
  pass(1'000);
  EXPECT_THAT(heard(), IsEmpty());
}

TEST_F(JudgeTest, ARankWaitedForLongAfterItLeftIsNamed) {
  enter_all_and_open(2, false);
  const auto wait = [&] {
    say(0, Writer(Type::waiting).text("g").u64(5).text("barrier").i32(1));
    return heard();
  };
  const std::string status = fmt::format("to 0: type {}", static_cast<int>(Type::waiting_status));
  EXPECT_THAT(wait(), ::testing::ElementsAre(status)) << "it is still there";
  say(1, Writer(Type::close_group).text("g"));
  pass(499);
  EXPECT_THAT(wait(), ::testing::ElementsAre(status)) << "it may just have finished the call";
  pass(1);
  EXPECT_THAT(wait(), ::testing::Contains(
                          "to 0: verdict: rank 1 (pid 101 on h) left while rank 0 waited for it in "
                          "call 5, barrier"));
}

TEST_F(JudgeTest, ARankThatEndsIsNamedByThoseThatWaitForMoreThanItHasBegun) {
  const auto number = [](Rank from, Rank to, std::uint32_t index) {
    return MessageNumber{.from = from, .to = to, .index = index}.pack();
  };
  enter_all_and_open(3, false);
  const auto wait = [&](Rank rank, std::uint64_t call, Rank peer) {
    say(rank, Writer(Type::waiting).text("g").u64(call).text("message").i32(peer));
    return heard();
  };
  const auto verdict = ::testing::Contains(HasSubstr("verdict"));
  EXPECT_THAT(wait(0, number(1, 0, 6), 1), ::testing::Not(verdict)) << "it may come yet";
  say(1, Writer(Type::ending).text("g").u32(1).i32(0).u32(5).u32(0x7fffffff));
  EXPECT_THAT(wait(0, number(1, 0, 5), 1), ::testing::Not(verdict)) << "it is on its way";
  EXPECT_THAT(wait(0, number(0, 1, 0x7fffffff), 1), ::testing::Not(verdict)) << "it is expected";
  EXPECT_THAT(wait(1, number(1, 0, 6), 0), ::testing::Not(verdict)) << "rank 0 goes on";
  EXPECT_THAT(wait(0, number(1, 0, 6), 1),
              ::testing::Contains("to 2: verdict: rank 1 (pid 101 on h) left while rank 0 waited "
                                  "for it in message 6, message"));
}

TEST_F(JudgeTest, ASendBeyondWhatAnEndingRankTakesIsInVainAlsoWhereNumbersWrap) {
  const std::uint64_t wrapped = MessageNumber{.from = 0, .to = 1, .index = 1}.pack();
  const std::uint64_t first = MessageNumber{.from = 2, .to = 1, .index = 1}.pack();
  for (const auto& [rank, call] : {std::pair(0, wrapped), std::pair(2, first)}) {
    enter_all_and_open(3, false);
    say(1, Writer(Type::ending).text("g").u32(1).i32(0).u32(0).u32(0x7fffffff));
    say(rank, Writer(Type::waiting).text("g").u64(call).text("message").i32(1));
    EXPECT_THAT(heard(), ::testing::Contains(HasSubstr(fmt::format(
                             "verdict: rank 1 (pid 101 on h) left while rank {}", rank))));
  }
}

TEST_F(JudgeTest, AnEndWithMessagesOfStrangersIsMalformed) {
  enter_all_and_open(2, false);
  EXPECT_THROW(say(1, Writer(Type::ending).text("g").u32(1).i32(2).u32(1).u32(1)), wire::Malformed);
  EXPECT_THROW(say(1, Writer(Type::ending).text("g").u32(1).i32(-1).u32(1).u32(1)),
               wire::Malformed);
  EXPECT_THROW(say(1, Writer(Type::ending).text("g").u32(1000).i32(0)), wire::Malformed);
}

TEST_F(JudgeTest, ANoteGoesToWhomItIsForAndToNobodyWhoHasLeft) {
  enter_all_and_open(3, false);
  const std::vector<std::byte> blob(5);
  say(2, Writer(Type::note).text("g").i32(0).blob(blob).u64(1));
  EXPECT_THAT(heard(), ::testing::ElementsAre("to 0: note of 2, 5 bytes"));
  say(0, Writer(Type::close_group).text("g"));
  (void)heard();
  say(2, Writer(Type::note).text("g").i32(0).blob(blob).u64(1));
  say(2, Writer(Type::note).text("unknown").i32(0).blob(blob).u64(1));
  EXPECT_THAT(heard(), IsEmpty());
  for (const Rank outside : {-1, 3}) {
    EXPECT_THROW(say(2, Writer(Type::note).text("g").i32(outside).blob(blob).u64(1)),
                 wire::Malformed);
  }
  const std::vector<std::byte> large(wire::kMaxNote + 1);
  EXPECT_THROW(say(2, Writer(Type::note).text("g").i32(1).blob(large).u64(1)), wire::Malformed);
}

TEST_F(JudgeTest, ARankThatSendsRubbishIsDisconnectedWhateverTheLauncherSaysOfItsEnd) {
  for (const bool reaped_first : {false, true}) {
    enter_all_and_open(2, true);
    if (reaped_first) judge_->ended(1, "exited with status 3", now_);
    judge_->expelled(1, "it sent what no rank sends: a message of type 0", now_);
    if (!reaped_first) judge_->ended(1, "exited with status 3", now_);
    pass(0);
    const auto orders = judge_->take_orders();
    ASSERT_EQ(orders.size(), 1U);
    wire::Reader body(std::span(*orders[0].frame).subspan(5));
    const Rank rank = body.i32();
    const std::string who = body.text(), how = body.text();
    EXPECT_EQ(death_sentence(rank, rank, who, how, body.u8() != 0),
              "rank 1 (pid 101 on h) was disconnected: it sent what no rank sends: a message of "
              "type 0");
  }
}

TEST_F(JudgeTest, OneOfThoseWhoWaitSpeaksAndNamesWhoIsStopped) {
  bool stopped = false;
  judge_.emplace(
      Judge::Rules{.world_size = 4,
                   .host_identity = "x",
                   .host_text = "pid 1 on h",
                   .is_stopped = [&](const std::string& who) { return stopped && who == "1"; }});
  world_ = {0, 1, 2, 3};
  for (const Rank rank : world_) enter(rank);
  for (const Rank rank : world_) say(rank, Writer(Type::open_group).text("g").ranks(world_));
  (void)heard();
  const auto wait = [&](Rank rank, std::uint64_t call) {
    say(rank, Writer(Type::waiting).text("g").u64(call).text("barrier()").i32(1));
    const auto orders = judge_->take_orders();
    wire::Reader body(std::span(*orders.at(0).frame).subspan(5));
    (void)body.text();
    (void)body.u64();
    const std::string missing = body.text();
    return std::pair(missing, body.u8() != 0);
  };
  EXPECT_TRUE(wait(3, 1254).second) << "nobody else waits";
  EXPECT_TRUE(wait(2, 1254).second);
  EXPECT_FALSE(wait(3, 1254).second);
  EXPECT_TRUE(wait(0, 1254).second);
  EXPECT_FALSE(wait(2, 1254).second);
  EXPECT_EQ(wait(0, 1254).first,
            "rank 1 (pid 101 on h) has never waited for long, so it has reported no call: it "
            "computes, or stands still");
  stopped = true;
  EXPECT_EQ(wait(0, 1254).first, "rank 1 (pid 101 on h) is stopped (kill -CONT resumes it)");
}

// The rank in whose process it lives may belong to another communicator, where it is waited for.
TEST_F(JudgeTest, TheCoordinatorStaysForThoseThatRunAndNotForOneThatIsStopped) {
  bool stopped = false;
  judge_.emplace(Judge::Rules{.world_size = 2,
                              .launcher = false,
                              .host_identity = "0",
                              .host_text = "pid 100 on h",
                              .is_stopped = [&](const std::string&) { return stopped; }});
  for (const Rank rank : {0, 1}) enter(rank);
  say(0, Writer(Type::goodbye).text(""));
  (void)heard();
  pass(1'000);
  EXPECT_THAT(heard(), IsEmpty());
  stopped = true;
  ASSERT_TRUE(judge_->deadline());
  now_ = *judge_->deadline();
  pass(0);
  EXPECT_THAT(heard(), ElementsAre(fmt::format("to 1: type {}", static_cast<int>(Type::host_left)),
                                   "to 0: close"));
}

// The relay dies that was to hand it down.
TEST_F(JudgeTest, ARankThatMissedThatAllHaveJoinedIsToldWhenItComesAgain) {
  start(3, false);
  judge_->note_relays();
  for (const Rank rank : {0, 1}) enter(rank);
  EXPECT_FALSE(judge_->is_untold(hello_of(0)));
  enter(2);
  EXPECT_THAT(heard(), Contains("to 0: joined, host -1"));
  judge_->closed(2, "its connection closed", now_);
  judge_->scattered(0, now_);
  pass(0);
  (void)heard();
  EXPECT_TRUE(judge_->is_untold(hello_of(0)));
  wire::Hello other = hello_of(0);
  other.identity = "another process";
  EXPECT_FALSE(judge_->is_untold(other));
  EXPECT_FALSE(judge_->is_untold(hello_of(1))) << "it is there";
  judge_->admit_untold(hello_of(0));
  EXPECT_THAT(heard(), IsSupersetOf({"to 0: joined, host -1",
                                     "to 0: death 2 pid 102 on h: its connection closed"}));
  pass(60'000);
  EXPECT_EQ(judge_->state(0), Judge::State::joined);
}

// An exchange has one outcome on all that survive it, though the relay that hands it down dies.
TEST_F(JudgeTest, AResultThatOneRankMissedComesBeforeTheDeathThatFollowedIt) {
  start(3, false);
  judge_->note_relays();
  for (const Rank rank : {0, 1, 2}) enter(rank);
  const auto gives = [&] {
    return Writer(Type::exchange).text("k").ranks(world_).blob({}).text("");
  };
  for (const Rank rank : {0, 1, 2}) say(rank, gives());
  const auto result = fmt::format("to 1: type {}", static_cast<int>(Type::exchange_result));
  EXPECT_THAT(heard(), Contains(result));
  judge_->closed(0, "its connection closed", now_);
  judge_->scattered(1, now_);
  pass(0);
  EXPECT_THAT(heard(), ElementsAre("to 2: death 0 pid 100 on h: its connection closed"));
  begin_return(1);
  say(1, gives());
  say(1, Writer(Type::followed));
  const auto said = heard();
  ASSERT_GE(said.size(), 2U);
  EXPECT_EQ(said[0], result);
  EXPECT_EQ(said[1], "to 1: death 0 pid 100 on h: its connection closed");
  // What nobody has the result of ends by the death.
  say(1, Writer(Type::exchange).text("next").ranks(world_).blob({}).text(""));
  EXPECT_THAT(heard(), IsEmpty());
}

// Another thread of that rank exchanges with others at the same time.
TEST_F(JudgeTest, AResultThatOneRankMissedComesThoughALaterOneCameWhileItArrived) {
  start(3, false);
  judge_->note_relays();
  for (const Rank rank : {0, 1, 2}) enter(rank);
  const auto gives = [&] {
    return Writer(Type::exchange).text("k").ranks(world_).blob({}).text("");
  };
  const std::vector<Rank> two{1, 2};
  const auto gives_aside = [&] {
    return Writer(Type::exchange).text("aside").ranks(two).blob({}).text("");
  };
  say(1, gives_aside());
  for (const Rank rank : {0, 1, 2}) say(rank, gives());
  judge_->closed(0, "its connection closed", now_);
  judge_->scattered(1, now_);
  begin_return(1);
  say(1, gives_aside());
  (void)heard();
  say(2, gives_aside());
  const auto result = fmt::format("to 1: type {}", static_cast<int>(Type::exchange_result));
  EXPECT_THAT(heard(), Contains(result));
  say(1, gives());
  say(1, Writer(Type::followed));
  const auto said = heard();
  ASSERT_GE(said.size(), 2U);
  EXPECT_EQ(said[0], result);
  EXPECT_EQ(said[1], "to 1: death 0 pid 100 on h: its connection closed");
}

// The communicator fails meanwhile: who missed the result would else take that for the outcome.
TEST_F(JudgeTest, AResultThatOneRankMissedComesBeforeTheVerdictThatFollowedIt) {
  start(3, false);
  judge_->note_relays();
  for (const Rank rank : {0, 1, 2}) enter(rank);
  const auto opens = [&] { return Writer(Type::open_group).text("g").ranks(world_); };
  const auto gives = [&] {
    return Writer(Type::exchange).text("k").ranks(world_).blob({}).text("");
  };
  for (const Rank rank : {0, 1, 2}) say(rank, opens());
  for (const Rank rank : {0, 1, 2}) say(rank, gives());
  const auto result = fmt::format("to 1: type {}", static_cast<int>(Type::exchange_result));
  EXPECT_THAT(heard(), Contains(result));
  judge_->scattered(1, now_);
  begin_return(1);
  say(2, Writer(Type::abort).text("g").text("enough"));  // while rank 1 is on its way
  say(1, opens());
  say(1, gives());
  for (const std::string& each : heard()) EXPECT_THAT(each, Not(StartsWith("to 1"))) << each;
  say(1, Writer(Type::followed));
  const auto said = heard();
  ASSERT_GE(said.size(), 2U);
  EXPECT_EQ(said[0], result);
  EXPECT_THAT(said[1], AllOf(StartsWith("to 1: verdict"), HasSubstr("rank 2 aborted: enough")));
}

// Those that had read the verdict have failed by then, and would be waited for in what follows.
TEST_F(JudgeTest, AnExchangeThatAVerdictEndsForSomeEndsForAll) {
  enter_all_and_open(3, false);
  const auto give = [&](Rank rank, const std::string& key, const std::string& group) {
    say(rank, Writer(Type::exchange).text(key).ranks(world_).blob({}).text(group));
  };
  const auto result = [](Rank to) {
    return fmt::format("to {}: type {}", to, static_cast<int>(Type::exchange_result));
  };
  for (const Rank rank : {0, 1, 2}) give(rank, "before", "g");
  EXPECT_THAT(heard(), ElementsAre(result(0), result(1), result(2)));
  for (const Rank rank : {0, 1}) give(rank, "under way", "g");
  for (const Rank rank : {0, 1}) give(rank, "of another", "h");
  say(1, Writer(Type::abort).text("g").text("enough"));
  EXPECT_THAT(heard(), Each(HasSubstr("verdict: rank 1 aborted: enough")));
  give(2, "under way", "g");
  for (const Rank rank : {0, 1}) give(rank, "under way", "g");
  EXPECT_THAT(heard(), IsEmpty());
  give(2, "of another", "h");
  EXPECT_THAT(heard(), ElementsAre(result(0), result(1), result(2)));
}

TEST_F(JudgeTest, ListsAreShort) {
  EXPECT_EQ(list_ranks(std::vector<Rank>{3}), "rank 3");
  EXPECT_EQ(list_ranks(std::vector<Rank>{3, 5}), "ranks 3 and 5");
  EXPECT_EQ(list_ranks(std::vector<Rank>{1, 2, 3}), "ranks 1, 2 and 3");
  std::vector<Rank> many(100);
  std::iota(many.begin(), many.end(), 0);
  EXPECT_EQ(list_ranks(many), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 92 more");
}

}  // namespace
}  // namespace chorus
