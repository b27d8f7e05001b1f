// Cables that fail while a job uses them: no call fails, every result is right, the log says what
// was lost, and a cable that comes back is used again.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "faults.hpp"

namespace chorus::perf {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class RailsFaults : public ::testing::Test {
 protected:
  /// False where no network namespaces may be made.
  bool runs(const std::string& cluster, const Variables& variables = {}) {
    try {
      job_.reset();
      job_ = std::make_unique<FaultyJob>(cluster, variables);
    } catch (const NotAllowed& error) {
      why_not_ = error.what();
      return false;
    }
    return true;
  }
  void expect_all_is_well() {
    EXPECT_EQ(job_->end(), "");
    EXPECT_EQ(job_->wrong(), 0);
  }

  std::unique_ptr<FaultyJob> job_;
  std::string why_not_;
};

#define RUNS_OR_SKIP(...) \
  if (!runs(__VA_ARGS__)) GTEST_SKIP() << why_not_

TEST_F(RailsFaults, CostNoCallWhicheverCableAndHowever) {
  RUNS_OR_SKIP("lan:3,cables=2,rate=0.04");
  for (const int network : {1, 0}) {
    for (const Fault fault : kFaults) {
      const int host = network == 1 ? 1 : 2;
      job_->inflict(fault, host, network);
      job_->await_rounds(4);
      job_->mend(host, network);
      EXPECT_TRUE(job_->await_use(host, network, 2 << 20, 60)) << name_of(fault) << network;
    }
  }
  expect_all_is_well();
  EXPECT_THAT(job_->said(), HasSubstr("lost the path from net1 (10.231.8.2) of host1 to rank "));
  EXPECT_THAT(job_->said(), HasSubstr("lost the path from net0 (10.231.7.3) of host2 to rank "));
  EXPECT_THAT(job_->said(), HasSubstr("carries bytes again"));
}

// The coordinator is on host 0, and all ranks have met it by the first cables.
TEST_F(RailsFaults, TheCoordinatorIsReachedByAnotherCableWhereTheFirstOneIsAway) {
  for (const auto& [fault, host] :
       {std::pair(Fault::cut, 0), std::pair(Fault::silence, 2), std::pair(Fault::deaf, 0)}) {
    RUNS_OR_SKIP("lan:3,cables=2,rate=0.04");
    job_->inflict(fault, host, 0);
    EXPECT_TRUE(job_->await_said(", and is reached by the one from 10.231.8.", host == 0 ? 2 : 1))
        << name_of(fault) << host;
    job_->await_rounds(4);
    // A death is named by what goes that way.
    EXPECT_THAT(job_->kill(2), HasSubstr("died: its connection closed"));
    EXPECT_EQ(job_->wrong(), 0);
  }
}

TEST_F(RailsFaults, TheCoordinatorIsSucceededWhereASuccessorsFirstCableIsAway) {
  RUNS_OR_SKIP("lan:3,cables=2,rate=0.04");
  job_->inflict(Fault::cut, 1, 0);
  EXPECT_TRUE(job_->await_said(", and is reached by the one from 10.231.8.", 1));
  const std::string said = job_->kill(0);
  EXPECT_THAT(said, HasSubstr("failed call: rank 1: rank 0 (pid "));
  EXPECT_THAT(said, HasSubstr("failed call: rank 2: rank 0 (pid "));
  EXPECT_THAT(said, Not(HasSubstr("the network is split")));
}

TEST_F(RailsFaults, ACableIsNotNeededForGood) {
  RUNS_OR_SKIP("lan:2,cables=2,rate=0.04");
  job_->inflict(Fault::cut, 0, 1);
  job_->await_rounds(1);
  const std::int64_t before = job_->sent_bytes(0, 1);
  job_->await_rounds(20);
  EXPECT_LT(job_->sent_bytes(0, 1) - before, 100'000);
  expect_all_is_well();
}

TEST_F(RailsFaults, ASlowCableCarriesLess) {
  RUNS_OR_SKIP("lan:2,cables=2,rate=0.04");
  job_->inflict(Fault::slow, 0, 1);
  job_->await_rounds(4);
  const std::int64_t slow = job_->sent_bytes(0, 1), fast = job_->sent_bytes(0, 0);
  job_->await_rounds(8);
  EXPECT_LT(4 * (job_->sent_bytes(0, 1) - slow), job_->sent_bytes(0, 0) - fast);
  expect_all_is_well();
  EXPECT_THAT(job_->said(), Not(HasSubstr("lost the path"))) << "it is slow and not lost";
}

// A host's only cable takes a tenth from then on: calls go on, and soon by schedules for that.
TEST_F(RailsFaults, ANetworkThatHasChangedIsMeasuredAgainAndPlannedFor) {
  RUNS_OR_SKIP("lan:4,rate=0.04",
               {{"CHORUS_PROBE_MS", "5000"}, {"CHORUS_AWAIT_PLAN", "1"}, {"CHORUS_LOG", "info"}});
  ASSERT_TRUE(job_->await_said("the plan begins with call", 1));
  job_->await_rounds(8);  // what calls usually take
  job_->inflict(Fault::slow, 2, 0);
  EXPECT_TRUE(job_->await_said("the network has changed", 1));
  EXPECT_TRUE(job_->await_said("the plan begins with call", 2));
  job_->await_rounds(2);
  expect_all_is_well();
}

TEST_F(RailsFaults, ANetworkThatHasChangedIsOnlyToldOfWhereReplanningIsOff) {
  RUNS_OR_SKIP("lan:4,rate=0.04", {{"CHORUS_PROBE_MS", "5000"},
                                   {"CHORUS_AWAIT_PLAN", "1"},
                                   {"CHORUS_LOG", "info"},
                                   {"CHORUS_REPLAN", "off"}});
  ASSERT_TRUE(job_->await_said("the plan begins with call", 1));
  job_->await_rounds(8);
  job_->inflict(Fault::slow, 2, 0);
  EXPECT_TRUE(job_->await_said("reprobe(), or the next job, measures it again", 1));
  expect_all_is_well();
}

}  // namespace
}  // namespace chorus::perf
