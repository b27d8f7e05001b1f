// A small cluster drawn by a seed, emulated: what runs there is right and nothing of it stays.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>

#include "perf/cluster/cluster.hpp"
#include "perf/cluster/command.hpp"
#include "perf/report/campaign.hpp"

namespace chorus::perf {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;
using ::testing::HasSubstr;

/// Three hosts with up to two cables each, behind two switches, and two ranks on each host.
constexpr const char* kSmall = "random:11,hosts=3,switches=2,cables=2,rate=0.05,least=0.02,ranks=2";

/// Why no cluster may be made here; empty where one may.
std::string why_not_here() {
  try {
    const Cluster cluster(cluster_fabric("lan:2"), {});
  } catch (const NotAllowed& error) {
    return error.what();
  }
  return {};
}

Settings small_settings() {
  Settings settings;
  settings.clusters = {{.topology = kSmall, .order = {}, .cables = {}, .described = false}};
  for (const Library& library : find_libraries(BIN_DIR)) {
    if (library.name == "chorus") settings.libraries = {library};
  }
  settings.sizes = {64 << 10};
  settings.rounds = 2;
  settings.max_iterations = 3;
  settings.timeout_s = 120;
  settings.restart = true;
  settings.cores = true;
  return settings;
}

TEST(RandomCluster, RunsACheckedAllReduceAndIsContinuedWhereItStopped) {
  if (const std::string why = why_not_here(); !why.empty()) GTEST_SKIP() << why;
  const Settings settings = small_settings();
  ASSERT_EQ(settings.libraries.size(), 1U) << "chorus-perf-worker-chorus is not built";
  Continued continued;
  int saved = 0;
  continued.save = [&](const Report& report) {
    ++saved;
    continued.before = report;
  };
  const Report report = measure_all(
      settings, [](const Step&) {}, nullptr, continued);
  ASSERT_EQ(report.rows.size(), 1U);
  const Row& row = report.rows.front();
  EXPECT_EQ(row.reason, "");
  EXPECT_EQ(row.wrong, 0U) << row.first_wrong;
  EXPECT_EQ(row.ranks, 6);
  EXPECT_EQ(row.transport, kSmall);
  EXPECT_EQ(row.p50_us_by_round.size(), 2U);
  EXPECT_GT(row.bound_us, 0);
  EXPECT_GT(row.faster_us, 0);
  EXPECT_EQ(saved, 1);
  // All of it is there: no cluster is set up, and the row stays as it was.
  continued.save = [](const Report&) { FAIL() << "it was measured again"; };
  const Report again = measure_all(
      settings, [](const Step&) {}, nullptr, continued);
  EXPECT_EQ(again.rows, report.rows);
  EXPECT_EQ(again.peers, report.peers);
}

/// Whether any process of this machine lives in the network namespace `wanted`.
bool inhabited(const std::string& wanted) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/proc", ignored)) {
    std::error_code gone;
    if (fs::read_symlink(entry.path() / "ns/net", gone).string() == wanted) return true;
  }
  return false;
}

TEST(RandomCluster, LeavesNothingBehindWhenItIsInterrupted) {
  if (const std::string why = why_not_here(); !why.empty()) GTEST_SKIP() << why;
  Command command;
  command.argv = {BIN_DIR "/chorus-perf",
                  "cluster",
                  "run",
                  kSmall,
                  "--",
                  "sh",
                  "-c",
                  "echo \"<$(readlink /proc/self/ns/net)>\"; trap '' INT HUP; "
                  "setsid sleep 600 & sleep 600"};
  Child child(command);
  const auto count = [&] {
    child.drain();
    return std::count(child.output().begin(), child.output().end(), '>');
  };
  const auto deadline = std::chrono::steady_clock::now() + 60s;
  while (count() < 6 && child.ended().empty() && std::chrono::steady_clock::now() < deadline) {
    ::poll(nullptr, 0, 5);
  }
  ASSERT_EQ(count(), 6) << child.output();
  const std::size_t begin = child.output().find('<') + 1;
  const std::string inside = child.output().substr(begin, child.output().find('>', begin) - begin);
  ASSERT_THAT(inside, HasSubstr("net:["));
  EXPECT_TRUE(inhabited(inside));
  ::kill(child.pid(), SIGINT);
  while (child.ended().empty() && std::chrono::steady_clock::now() < deadline) {
    child.drain();
    ::poll(nullptr, 0, 5);
  }
  EXPECT_EQ(child.ended(), "exited with 130") << child.output();
  EXPECT_FALSE(inhabited(inside));
}

}  // namespace
}  // namespace chorus::perf
