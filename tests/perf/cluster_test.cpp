// Emulated clusters as they stand: rates, isolation, and that nothing of them is left.
#include "perf/cluster/cluster.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>

#include "perf/cluster/command.hpp"
#include "perf/cluster/start.hpp"
#include "perf/cluster/stream.hpp"
#include "topology/discover/sources.hpp"

namespace chorus::perf {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

/// The cluster, or nothing and a skipped test where none may be made.
std::unique_ptr<Cluster> cluster_named(const char* name, const CableOptions& options = {}) {
  return std::make_unique<Cluster>(fabric_of(topology_from_name(name)), options);
}

#define CLUSTER_OR_SKIP(variable, ...)     \
  std::unique_ptr<Cluster> variable;       \
  try {                                    \
    variable = cluster_named(__VA_ARGS__); \
  } catch (const NotAllowed& error) {      \
    GTEST_SKIP() << error.what();          \
  }

std::string output_of(const Command& command) {
  Child child(command);
  while (child.ended().empty()) ::poll(nullptr, 0, 1);
  child.drain();
  return child.output();
}

Command on(const Cluster& cluster, int host, const std::string& text) {
  Command command;
  command.argv = {"sh", "-c", text};
  command.namespaces_of = cluster.keeper(host);
  return command;
}

std::string namespace_of(pid_t pid) {
  std::error_code gone;
  return fs::read_symlink(fmt::format("/proc/{}/ns/net", pid), gone).string();
}

/// Whether any process of this machine lives in the network namespace `wanted`.
bool inhabited(const std::string& wanted) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/proc", ignored)) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid > 0 && namespace_of(pid) == wanted) return true;
  }
  return false;
}

std::set<std::string> interfaces() {
  std::set<std::string> found;
  for (const auto& entry : fs::directory_iterator("/sys/class/net")) {
    found.insert(entry.path().filename().string());
  }
  return found;
}

TEST(Cluster, CarriesWhatItsCablesAllow) {
  CLUSTER_OR_SKIP(cluster, "pairs");
  const std::vector<CableCheck> checks = check_cables(*cluster, 0.3);
  ASSERT_EQ(checks.size(), 4U);
  for (const CableCheck& check : checks) {
    // Cores that others use can only make it slower; no cable may be faster than its rate.
    EXPECT_LT(check.measured_bytes_per_s, 1.1 * check.expected_bytes_per_s) << check.from;
    EXPECT_GT(check.measured_bytes_per_s, 0.3 * check.expected_bytes_per_s) << check.from;
  }
  EXPECT_NEAR(checks[1].measured_bytes_per_s / checks[1].expected_bytes_per_s, 1, 0.15);
}

TEST(Cluster, HostsHaveNamesAddressesAndNothingOfThisMachine) {
  CLUSTER_OR_SKIP(cluster, "slow");
  EXPECT_EQ(output_of(on(*cluster, 2, "hostname")), "host2\n");
  const std::string addresses = output_of(on(*cluster, 2, "ip -o -4 addr show"));
  EXPECT_THAT(addresses, HasSubstr("10.231.7.3/24"));
  EXPECT_EQ(output_of(on(*cluster, 2, "ip -o link show | wc -l")), "2\n");  // lo and net0
  EXPECT_EQ(output_of(on(*cluster, 2, "ls /sys/class/net")), "lo\nnet0\n");
  const std::string boot = "cat /proc/sys/kernel/random/boot_id";
  EXPECT_EQ(output_of(on(*cluster, 2, boot)).size(), 37U);
  EXPECT_NE(output_of(on(*cluster, 2, boot)), output_of(on(*cluster, 1, boot)));
  EXPECT_EQ(output_of(on(*cluster, 0, "pwd")), fs::current_path().string() + "\n");
}

TEST(Cluster, SeveralStandAtOnceWithoutMeeting) {
  CLUSTER_OR_SKIP(one, "lan:2");
  CLUSTER_OR_SKIP(other, "lan:2");
  EXPECT_NE(namespace_of(one->keeper(0)), namespace_of(other->keeper(0)));
  EXPECT_EQ(check_cables(*one, 0.05).size(), 2U);
  one.reset();  // and one may go before the other
  EXPECT_EQ(check_cables(*other, 0.05).size(), 2U);
}

TEST(Cluster, LeavesNothingBehind) {
  const auto interfaces_before = interfaces();
  std::vector<std::string> inside;
  {
    CLUSTER_OR_SKIP(cluster, "homo");
    for (int host = 0; host < 4; ++host) inside.push_back(namespace_of(cluster->keeper(host)));
    EXPECT_NE(inside[1], namespace_of(::getpid()));
    EXPECT_EQ(interfaces(), interfaces_before) << "nothing may appear outside";
    // One that has left its parent and ignores being asked to end.
    output_of(on(*cluster, 1,
                 "setsid sh -c 'trap \"\" TERM HUP; while :; do sleep 1; done' >/dev/null 2>&1 &"));
  }
  for (const std::string& id : inside) EXPECT_FALSE(inhabited(id)) << id;
  EXPECT_EQ(interfaces(), interfaces_before);
}

TEST(Cluster, GoesWhenItsOwnerIsKilled) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t owner = ::fork();
  if (owner == 0) {
    std::string said = "nothing";
    try {
      const auto cluster = cluster_named("pairs");
      const Child child(on(*cluster, 0, "setsid sleep 600 & sleep 600"));
      said = namespace_of(cluster->keeper(0));
      (void)!::write(ends[1], said.data(), said.size());
      for (;;) ::pause();
    } catch (const NotAllowed&) {
      said = "not allowed";
    } catch (const Error& error) {
      said = error.what();
    }
    (void)!::write(ends[1], said.data(), said.size());
    ::_exit(0);
  }
  char said[400] = {};
  ASSERT_GT(::read(ends[0], said, sizeof said - 1), 0);
  if (std::strcmp(said, "not allowed") == 0) {
    ::waitpid(owner, nullptr, 0);
    GTEST_SKIP() << "network namespaces may not be made here";
  }
  ASSERT_THAT(said, HasSubstr("net:["));
  ::poll(nullptr, 0, 100);
  EXPECT_TRUE(inhabited(said));
  ::kill(owner, SIGKILL);
  ::waitpid(owner, nullptr, 0);
  for (int i = 0; i < 500 && inhabited(said); ++i) ::poll(nullptr, 0, 10);
  EXPECT_FALSE(inhabited(said));
}

TEST(Cluster, SaysWhoMayMakeOne) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to give it up";
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    std::string said = "it was made";
    if (::setgid(65534) != 0 || ::setuid(65534) != 0) said = "privileges stayed";
    try {
      (void)cluster_named("lan:2");
    } catch (const Error& error) {
      said = error.what();
    }
    (void)!::write(ends[1], said.data(), said.size());
    ::_exit(0);
  }
  char text[400] = {};
  ASSERT_GT(::read(ends[0], text, sizeof text - 1), 0);
  ::waitpid(child, nullptr, 0);
  EXPECT_THAT(text, HasSubstr("CAP_NET_ADMIN"));
}

TEST(Cluster, RanksLearnTheirPlaces) {
  CLUSTER_OR_SKIP(cluster, "lan:2x1");
  const std::vector<Command> commands =
      rank_commands(*cluster, {"sh", "-c", "echo $(hostname) $RANK/$WORLD_SIZE $MASTER_ADDR"}, {});
  ASSERT_EQ(commands.size(), 3U);
  EXPECT_EQ(output_of(commands[2]), "host2 2/3 10.231.7.1\n");
}

TEST(Cluster, AnUnknownCongestionControlIsRefused) {
  CLUSTER_OR_SKIP(cluster, "lan:2");
  EXPECT_THROW((void)cluster_named("lan:2", {.congestion = "warp"}), InputError);
  EXPECT_THROW((void)cluster_named("lan:2", {.congestion = "reno; reboot"}), InputError);
  const auto reno = cluster_named("lan:2", {.congestion = "reno"});
  EXPECT_EQ(output_of(on(*reno, 1, "cat /proc/sys/net/ipv4/tcp_congestion_control")), "reno\n");
}

std::int64_t received_bytes(const Cluster& cluster, int host, int network) {
  const std::string file =
      fmt::format("cat /sys/class/net/{}/statistics/rx_bytes", host_interface(network));
  return std::stoll(output_of(on(cluster, host, file)));
}

TEST(Cluster, TrafficOfOthersFlowsWhereItIsToldAndEndsWithTheCluster) {
  std::unique_ptr<Cluster> cluster;
  try {
    cluster =
        std::make_unique<Cluster>(cluster_fabric("lan:3,cables=2,rate=0.05"),
                                  CableOptions{.traffic = {stream_named("host0>host2/net1:0.02")}});
  } catch (const NotAllowed& error) {
    GTEST_SKIP() << error.what();
  }
  const std::int64_t before = received_bytes(*cluster, 2, 1);
  const auto begin = std::chrono::steady_clock::now();
  std::int64_t got = 0;
  double seconds = 0;
  while (got < 4'000'000 && seconds < 60) {
    got = received_bytes(*cluster, 2, 1) - before;
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  ASSERT_GE(got, 4'000'000);
  // Cores that others use can only make it slower. What is caught up and in flight comes on top.
  EXPECT_LT(static_cast<double>(got), 1.2 * 0.02e9 * seconds + 2e6);
  EXPECT_LT(received_bytes(*cluster, 2, 0), 100'000);
  EXPECT_LT(received_bytes(*cluster, 1, 1), 100'000);
  const std::string inside = namespace_of(cluster->keeper(0));
  cluster.reset();
  EXPECT_FALSE(inhabited(inside));
  int left = 0;
  EXPECT_EQ(::waitpid(-1, &left, WNOHANG), -1) << "a sender or receiver is still our child";
}

TEST(Traffic, IsRefusedByColumnAndByWhatIsMissing) {
  EXPECT_EQ(stream_named("host0>host12/net3:0.5"),
            (Stream{.from = 0, .to = 12, .network = 3, .bytes_per_s = 0.5e9}));
  const auto refused = [](const std::string& text) -> std::string {
    try {
      (void)stream_named(text);
    } catch (const InputError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(refused("node0>host1:1"), HasSubstr("column 1"));
  EXPECT_THAT(refused("host0-host1:1"), HasSubstr("column 6"));
  EXPECT_THAT(refused("host0>host:1"), HasSubstr("column 11"));
  EXPECT_THAT(refused("host0>host1/eth0:1"), HasSubstr("column 12"));
  for (const char* rate : {"", "fast", "0", "-1", "1x", "nan", "1e9"}) {
    EXPECT_THAT(refused(fmt::format("host0>host1:{}", rate)), HasSubstr("column 13")) << rate;
  }
  CLUSTER_OR_SKIP(allowed, "lan:2");
  for (const char* stream : {"host0>host2:1", "host0>host1/net1:1", "host1>host1:1"}) {
    EXPECT_THROW(Cluster(cluster_fabric("lan:2"), {.traffic = {stream_named(stream)}}), InputError)
        << stream;
  }
}

}  // namespace
}  // namespace chorus::perf
