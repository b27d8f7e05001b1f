// To whom ranks come when the coordinator is lost, and what a successor takes those for that do not
// come: time is in the test's hands.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "judge_harness.hpp"

namespace chorus {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::StartsWith;
using wire::Type;
using wire::Writer;

// All are to go to the same one where the coordinator is lost in that moment.
TEST_F(JudgeTest, ASuccessorWhoseRelayDiedStaysTheFirstThatOthersGoTo) {
  start(3, false);
  judge_->note_relays();
  wire::Hello first = hello_of(0);
  first.may_succeed = true;
  EXPECT_EQ(judge_->admit(first, now_), std::nullopt);
  for (const Rank rank : {1, 2}) enter(rank);
  say(0, *wire::places_frame(Type::listening, std::vector<wire::Place>{{"127.0.0.1", 1}}));
  (void)heard();
  for (const Rank rank : {0, 1}) judge_->scattered(rank, now_);
  begin_return(1);
  say(1, Writer(Type::followed));
  std::vector<wire::Successor> told;
  for (const Judge::Order& order : judge_->take_orders()) {
    if (order.close || static_cast<Type>((*order.frame)[4]) != Type::successors) continue;
    wire::Reader reader(std::span(*order.frame).subspan(5));
    told = wire::read_successors(reader, 3);
  }
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].rank, 0);
}

TEST_F(JudgeTest, ASuccessorToWhichTooFewCameServesThoseThatComeAgain) {
  judge_.emplace(Judge::Rules{.world_size = 5,
                              .launcher = false,
                              .host_identity = "1",
                              .host_text = "pid 101 on h",
                              .successor = true});
  wire::Follow known;
  known.host_rank = 0;
  follow(1, known);
  pass(1'100);
  EXPECT_TRUE(judge_->gave_up());
  for (const Rank rank : {1, 2, 3, 4}) follow(rank, known);
  EXPECT_THAT(heard(), Contains("to 1: death 0 : its connection closed"));
}

// A rank that was cut off alone comes to its own successor, and the others, which went on without
// it, end: that they died with the coordinator is not known, and it must not go on as the last.
class Gathering : public JudgeTest {
 protected:
  void gather(int world_size, Rank host_rank) {
    known_.host_rank = host_rank;
    judge_.emplace(Judge::Rules{.world_size = world_size,
                                .launcher = false,
                                .host_identity = "1",
                                .host_text = "pid 101 on h",
                                .is_stopped = {},
                                .began_us = 0,
                                .successor = true,
                                .is_running = [this](const std::string&) { return run_; }});
    for (Rank rank = 0; rank < world_size; ++rank) {
      roster_.push_back({fmt::format("pid {} on h", 100 + rank), fmt::format("{}", rank), false});
    }
    comes();
  }
  /// Rank 1, to the coordinator in its own process.
  void comes() {
    EXPECT_EQ(judge_->follow(hello_of(1), now_), std::nullopt);
    judge_->tick(now_);
    say(1, *wire::follow_frame(known_));
    for (const wire::Frame& frame : wire::roster_frames(roster_)) say(1, *frame);
    say(1, Writer(Type::followed));
  }
  void expect_too_few() {
    for (const std::string& each : heard()) EXPECT_THAT(each, Not(HasSubstr("death"))) << each;
    EXPECT_TRUE(judge_->gave_up());
  }

  bool run_ = true;  ///< the processes of the others
  wire::Follow known_{.loss = wire::Loss::closed,
                      .host_rank = -1,
                      .host_text = "pid 1 on h",
                      .last_result = 0,
                      .deaths = {},
                      .successors = {},
                      .verdicts = {}};
  std::vector<wire::Known> roster_;
};

TEST_F(Gathering, ProcessesThatRanMeanwhileMayHaveGoneOnWithoutTheOneThatCame) {
  gather(6, -1);
  run_ = false;
  pass(300);
  pass(800);
  expect_too_few();
  comes();  // once more, where it was
  pass(300);
  pass(800);
  expect_too_few();
}

// Something listens where the coordinator was, and has not answered in time.
TEST_F(Gathering, TheCoordinatorsProcessIsNotTakenForDeadWhereThatIsNotKnown) {
  known_.loss = wire::Loss::silent;
  gather(2, 0);
  run_ = false;
  pass(300);
  pass(800);
  expect_too_few();
}

TEST_F(Gathering, ProcessesThatHadEndedBeforeDiedWithTheCoordinator) {
  run_ = false;
  gather(6, 0);
  pass(300);
  EXPECT_FALSE(judge_->gave_up());
  EXPECT_THAT(heard(), IsSupersetOf({"to 1: death 0 pid 1 on h: its connection closed",
                                     "to 1: death 5 pid 105 on h: its connection closed"}));
}

TEST_F(Gathering, TheCoordinatorsProcessIsNotWaitedForWhereNothingListensThere) {
  gather(2, 0);
  EXPECT_THAT(heard(), Contains("to 1: death 0 pid 1 on h: its connection closed"));
}

// They come to a successor over a relay whose process dies, too.
TEST_F(JudgeTest, RanksThatAreScatteredWhileTheyGatherAreWaitedForAsBefore) {
  judge_.emplace(Judge::Rules{.world_size = 6,
                              .launcher = false,
                              .host_identity = "1",
                              .host_text = "pid 101 on h",
                              .successor = true});
  const wire::Follow known{.loss = wire::Loss::closed,
                           .host_rank = 0,
                           .host_text = "pid 100 on h",
                           .last_result = 0,
                           .deaths = {},
                           .successors = {},
                           .verdicts = {}};
  for (const Rank rank : {1, 2, 3}) follow(rank, known);
  pass(900);
  judge_->closed(5, "its connection closed", now_);  // the relay's process
  for (const Rank rank : {1, 2, 3}) judge_->scattered(rank, now_);
  judge_->tick(now_);
  pass(900);  // since then, and not since they came
  EXPECT_THAT(heard(), IsEmpty()) << "who has not come yet may still come";
  for (const Rank rank : {1, 2, 3}) follow(rank, known);
  EXPECT_THAT(heard(), IsEmpty()) << "rank 4 was on its way before";
  follow(4, known);
  pass(1'000);
  const auto said = heard();
  for (const Rank rank : {1, 2, 3, 4}) {
    std::vector<std::string> deaths;
    for (const std::string& each : said) {
      if (each.starts_with(fmt::format("to {}: death", rank))) deaths.push_back(each.substr(6));
    }
    EXPECT_THAT(deaths, ElementsAre("death 0 pid 100 on h: its connection closed",
                                    StartsWith("death 5 : it did not come")));
  }
}

}  // namespace
}  // namespace chorus
