#include "perf/report/campaign.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "chorus/error.hpp"
#include "perf/process.hpp"

namespace chorus::perf {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

Settings fake_settings() {
  Settings s;
  s.libraries = {{"fake", FAKE_WORKER}};
  s.sizes = {4, 4096};
  s.rounds = 2;
  s.budget_ms = 5;
  s.timeout_s = 20;
  return s;
}

Report run_fake(const char* fault, const Settings& settings = fake_settings()) {
  if (fault != nullptr) ::setenv("CHORUS_PERF_FAKE", fault, 1);
  Report report = measure_all(settings, [](const Step&) {});
  ::unsetenv("CHORUS_PERF_FAKE");
  return report;
}

/// Processes whose command line names the fake worker.
int fakes_running() {
  int count = 0;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "cmdline");
    std::string line;
    std::getline(file, line);
    count += line.find("chorus-perf-worker-fake") != line.npos ? 1 : 0;
  }
  return count;
}

/// Scratch directories of processes with this id's children; all that exist, in fact.
int scratch_directories() {
  int count = 0;
  for (const auto& entry : fs::directory_iterator("/dev/shm")) {
    count += entry.path().filename().string().starts_with("chorus-perf-") ? 1 : 0;
  }
  return count;
}

class Campaign : public ::testing::Test {
 protected:
  void SetUp() override { scratch_before_ = scratch_directories(); }
  void TearDown() override {
    EXPECT_EQ(fakes_running(), 0) << "workers were left behind";
    EXPECT_LE(scratch_directories(), scratch_before_) << "files were left behind";
  }

  int scratch_before_ = 0;
};

TEST_F(Campaign, MeasuresALibraryThatWorks) {
  const Report report = run_fake(nullptr);
  ASSERT_EQ(report.rows.size(), 2U);
  for (const Row& row : report.rows) {
    EXPECT_EQ(row.wrong, 0U);
    EXPECT_EQ(row.reason, "");
    ASSERT_TRUE(row.p50_us.has_value());
    EXPECT_GT(*row.p50_us, 0);
    EXPECT_GE(*row.p99_us, *row.p50_us);
    EXPECT_LE(row.min_us, *row.p50_us);
    EXPECT_EQ(row.p50_us_by_round.size(), 2U);
    EXPECT_GE(row.iterations, 10U);
    EXPECT_DOUBLE_EQ(row.algbw, static_cast<double>(row.bytes) / (*row.p50_us * 1e3));
    EXPECT_DOUBLE_EQ(row.busbw, row.algbw);  // 2(n−1)/n is 1 for two ranks
  }
  ASSERT_EQ(report.peers.size(), 1U);
  EXPECT_EQ(report.peers[0].version, "Fake 1");
}

TEST_F(Campaign, MeasuresInPlaceAndWithRewrittenBuffers) {
  Settings settings = fake_settings();
  settings.in_place = true;
  settings.ranks = 3;
  for (const bool dirty : {false, true}) {
    settings.dirty = dirty;
    for (const Row& row : run_fake(nullptr, settings).rows) {
      EXPECT_EQ(row.wrong, 0U);
      EXPECT_TRUE(row.p50_us.has_value());
    }
  }
}

TEST_F(Campaign, CatchesALibraryWithOneWrongElement) {
  for (const Row& row : run_fake("wrong").rows) {
    EXPECT_EQ(row.wrong, 4U) << "two checks in each of two rounds";
    EXPECT_THAT(row.first_wrong, HasSubstr("rank 1"));
  }
}

TEST_F(Campaign, CatchesAnElementThatIsNeverWritten) {
  for (const Row& row : run_fake("forget").rows) EXPECT_EQ(row.wrong, 8U);
}

TEST_F(Campaign, KillsALibraryThatHangsAndSaysSo) {
  Settings settings = fake_settings();
  settings.timeout_s = 0.7;
  const auto begin = std::chrono::steady_clock::now();
  const Report report = run_fake("hang", settings);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 15s);
  for (const Row& row : report.rows) {
    EXPECT_FALSE(row.p50_us.has_value());
    EXPECT_THAT(row.reason, HasSubstr("timed out"));
  }
}

TEST_F(Campaign, SaysWhichRankDied) {
  for (const Row& row : run_fake("crash").rows) {
    EXPECT_FALSE(row.p50_us.has_value());
    EXPECT_THAT(row.reason, ::testing::AnyOf(HasSubstr("rank 1 died"), HasSubstr("killed by")));
  }
}

TEST_F(Campaign, GivesUpOnALibraryThatDoesNotStart) {
  Settings settings = fake_settings();
  settings.timeout_s = 0.5;
  settings.sizes = {4, 64, 1024, 4096, 16384};
  const Report report = run_fake("deaf", settings);
  EXPECT_THAT(report.rows.front().reason, HasSubstr("timed out waiting for its ranks to start"));
  EXPECT_THAT(report.rows.back().reason, HasSubstr("given up"));
}

TEST_F(Campaign, RefusesRanksThatLie) {
  EXPECT_THAT(run_fake("imposter").rows.front().reason, HasSubstr("claim one rank"));
}

TEST_F(Campaign, ReportsAWorkerThatCannotBeRun) {
  Settings settings = fake_settings();
  settings.libraries = {{"absent", "/nonexistent/worker"}};
  EXPECT_THAT(run_fake(nullptr, settings).rows.front().reason, HasSubstr("exited with 127"));
}

TEST_F(Campaign, ShowsWhatALibraryDoesNotOffer) {
  Settings settings = fake_settings();
  settings.kinds = {Kind::broadcast, Kind::latency, Kind::all_reduce};
  settings.sizes = {4};
  const Report report = run_fake(nullptr, settings);
  EXPECT_EQ(report.rows[0].reason, "the fake only sums floats");
  EXPECT_EQ(report.rows[1].reason, "the fake only sums floats");
  EXPECT_TRUE(report.rows[2].p50_us.has_value()) << "a refusal costs its own row only";
}

TEST_F(Campaign, OneFailingLibraryDoesNotCostTheOthers) {
  Settings settings = fake_settings();
  settings.libraries.insert(settings.libraries.begin(), {"absent", "/nonexistent/worker"});
  const Report report = run_fake(nullptr, settings);
  ASSERT_EQ(report.rows.size(), 4U);
  EXPECT_FALSE(report.rows[0].p50_us.has_value());
  EXPECT_TRUE(report.rows[1].p50_us.has_value());
}

TEST_F(Campaign, RefusesSettingsThatCannotBeChecked) {
  Settings settings = fake_settings();
  settings.type = DataType::float8_e5m2;
  settings.ranks = 64;
  EXPECT_THROW((void)run_fake(nullptr, settings), InputError);
  settings = fake_settings();
  settings.root = 2;
  EXPECT_THROW((void)run_fake(nullptr, settings), InputError);
}

TEST_F(Campaign, LeavesNothingWhenItIsKilledMidway) {
  ::setenv("CHORUS_PERF_FAKE", "hang", 1);
  const pid_t driver = ::fork();
  ASSERT_GE(driver, 0);
  if (driver == 0) {
    (void)measure_all(fake_settings(), [](const Step&) {});
    ::_exit(0);
  }
  ::unsetenv("CHORUS_PERF_FAKE");
  const auto wait_until = [](auto done) {
    for (int i = 0; i < 1000 && !done(); ++i) std::this_thread::sleep_for(10ms);
    return done();
  };
  EXPECT_TRUE(wait_until([] { return fakes_running() == 2; }));
  ::kill(driver, SIGKILL);
  ::waitpid(driver, nullptr, 0);
  EXPECT_TRUE(wait_until([] { return fakes_running() == 0; }));
  EXPECT_TRUE(wait_until([&] { return scratch_directories() <= scratch_before_; }));
}

TEST(Continued, OnlyByTheSameProgramOnTheSameMachineWithTheSameRounds) {
  const Settings settings = fake_settings();
  Report before;
  before.machine = this_machine();
  before.commit = "abc";
  before.rounds = settings.rounds;
  EXPECT_EQ(why_not_continue(before, settings, "abc"), "");
  EXPECT_THAT(why_not_continue(before, settings, "def"), HasSubstr("commit abc"));
  before.rounds = settings.rounds + 1;
  EXPECT_THAT(why_not_continue(before, settings, "abc"), HasSubstr("--rounds"));
  before.machine.cpus = 1000;
  EXPECT_THAT(why_not_continue(before, settings, "abc"), HasSubstr("1000 CPUs"));
}

TEST(Restart, EveryRoundHasANewStart) {
  Settings settings = fake_settings();
  settings.restart = true;
  const Report report = run_fake(nullptr, settings);
  for (const Row& row : report.rows) {
    EXPECT_EQ(row.reason, "");
    EXPECT_EQ(row.p50_us_by_round.size(), 2U);
  }
  EXPECT_EQ(fakes_running(), 0);
}

}  // namespace
}  // namespace chorus::perf
