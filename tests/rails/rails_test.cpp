// Jobs on hosts with several cables: what each cable carried, as the hosts' interfaces counted it.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "perf/cluster/cluster.hpp"
#include "perf/cluster/command.hpp"
#include "perf/cluster/start.hpp"

namespace chorus::perf {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// Network namespaces, or the test is skipped.
class Rails : public ::testing::Test {
 protected:
  /// A cluster of that name stands, or false where none may be made.
  bool stands(const std::string& name) {
    try {
      cluster_ = std::make_unique<Cluster>(cluster_fabric(name), CableOptions{});
    } catch (const NotAllowed& error) {
      why_not_ = error.what();
      return false;
    }
    return true;
  }

  struct Outcome {
    std::vector<std::string> said;                          // by rank
    std::vector<std::string> ended;                         // by rank
    std::vector<std::map<std::string, double>> sent_bytes;  // by rank and interface

    [[nodiscard]] std::string all() const {
      return std::accumulate(said.begin(), said.end(), std::string());
    }
    [[nodiscard]] bool well() const {
      return std::all_of(ended.begin(), ended.end(),
                         [](const std::string& how) { return how == "exited with 0"; });
    }
    /// Of what rank's host sent by its cables, that by `interface`.
    [[nodiscard]] double share(std::size_t rank, const std::string& interface) const {
      double sum = 0;
      for (const auto& [name, bytes] : sent_bytes[rank]) sum += name == "lo" ? 0 : bytes;
      return sent_bytes[rank].at(interface) / sum;
    }
  };

  [[nodiscard]] Outcome run(const Variables& variables = {},
                            const std::vector<std::string>& program = {RAILS_JOB}) const {
    Variables all = variables;
    all.emplace_back("CHORUS_PROBE_CACHE", "");
    if (variables.empty() || variables.front().first != "CHORUS_PROBE_MS") {
      all.emplace_back("CHORUS_PROBE_MS", "0");
    }
    std::vector<Child> children;
    for (const Command& command : rank_commands(*cluster_, program, all)) {
      children.emplace_back(command);
    }
    Outcome outcome;
    for (Child& child : children) {
      while (child.ended().empty()) {
        for (Child& each : children) each.drain();
        ::poll(nullptr, 0, 2);
      }
      child.drain();
      outcome.said.push_back(child.output());
      outcome.ended.push_back(child.ended());
      std::map<std::string, double> sent;
      std::istringstream lines(child.output());
      for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line);
        std::string word, interface;
        double bytes = 0;
        if (words >> word >> interface >> bytes && word == "sent") sent[interface] = bytes;
      }
      outcome.sent_bytes.push_back(std::move(sent));
    }
    return outcome;
  }

  /// `command` on a host, or with the number behind the last host where the switches are.
  void on(int machine, const std::string& command) const {
    Command shell;
    shell.argv = {"sh", "-c", command};
    shell.namespaces_of = cluster_->keeper(machine);
    Child child(shell);
    while (child.ended().empty()) ::poll(nullptr, 0, 1);
    child.drain();
    ASSERT_EQ(child.ended(), "exited with 0") << command << ": " << child.output();
  }

  std::unique_ptr<Cluster> cluster_;
  std::string why_not_;
};

#define STANDS_OR_SKIP(name) \
  if (!stands(name)) GTEST_SKIP() << why_not_

TEST_F(Rails, EqualCablesCarryEqualShares) {
  STANDS_OR_SKIP("lan:4,cables=2,rate=0.05");
  const Outcome outcome = run();
  ASSERT_TRUE(outcome.well()) << outcome.all();
  for (std::size_t rank = 0; rank < 4; ++rank) {
    EXPECT_GT(outcome.share(rank, "net0"), 0.3) << outcome.all();
    EXPECT_GT(outcome.share(rank, "net1"), 0.3) << outcome.all();
  }
  EXPECT_THAT(outcome.all(), Not(HasSubstr("no path")));
}

TEST_F(Rails, UnequalCablesCarrySharesByTheirRates) {
  STANDS_OR_SKIP("lan:3,cables=3,rate=0.04,rate2=0.01,rate3=0.03");
  const Outcome outcome = run();
  ASSERT_TRUE(outcome.well()) << outcome.all();
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_GT(outcome.share(rank, "net0"), 0.3) << outcome.all();
    EXPECT_GT(outcome.share(rank, "net1"), 0.04) << outcome.all();
    EXPECT_LT(outcome.share(rank, "net1"), 0.25) << outcome.all();
    EXPECT_GT(outcome.share(rank, "net2"), 0.2) << outcome.all();
  }
}

TEST_F(Rails, AJobThatProbesItsNetworkUsesAllCables) {
  STANDS_OR_SKIP("lan:2,cables=2,rate=0.05");
  const Outcome outcome = run({{"CHORUS_PROBE_MS", "2000"}, {"CHORUS_LOG", "info"}});
  ASSERT_TRUE(outcome.well()) << outcome.all();
  EXPECT_GT(outcome.share(0, "net1"), 0.3) << outcome.all();
}

TEST_F(Rails, AnInterfaceThatIsNotNamedCarriesNothing) {
  STANDS_OR_SKIP("lan:2,cables=2,rate=0.05");
  const Outcome outcome = run({{"CHORUS_SOCKET_IFNAME", "net0"}});
  ASSERT_TRUE(outcome.well()) << outcome.all();
  EXPECT_LT(outcome.share(0, "net1"), 0.001) << outcome.all();
}

TEST_F(Rails, AnInterfaceThatIsNamedAndAbsentIsAnErrorThatNamesThoseThereAre) {
  STANDS_OR_SKIP("lan:2,cables=2,rate=0.05");
  const Outcome outcome = run({{"CHORUS_SOCKET_IFNAME", "net0,net7"}});
  EXPECT_FALSE(outcome.well());
  EXPECT_THAT(outcome.said[0], AllOf(HasSubstr("'net7'"), HasSubstr("net0 (10.231.7.1)"),
                                     HasSubstr("net1 (10.231.8.1)")));
}

TEST_F(Rails, ACableThatReachesNobodyIsLeftOutAndNamed) {
  STANDS_OR_SKIP("lan:3,cables=2,rate=0.05");
  on(3, "ip link set cable1n1 nomaster");  // host1's second, at the switch; up at both ends
  const Outcome outcome = run();
  ASSERT_TRUE(outcome.well()) << outcome.all();
  EXPECT_LT(outcome.share(1, "net1"), 0.001) << outcome.all();
  EXPECT_THAT(outcome.all(), AllOf(HasSubstr("no path from net1 (10.231.8.1) to rank 1 at "),
                                   HasSubstr("CHORUS_SOCKET_IFNAME")));
  // The other two have each other.
  EXPECT_GT(outcome.share(0, "net1"), 0.05) << outcome.all();
  EXPECT_GT(outcome.share(2, "net1"), 0.05) << outcome.all();
}

TEST_F(Rails, DoctorNamesACableThatReachesNobodyAndNoOther) {
  STANDS_OR_SKIP("lan:3,cables=2,rate=0.05");
  const std::vector<std::string> doctor = {
      "sh", "-c", "timeout 60 " CHORUS " doctor | grep -A3 -e cable-path: -e tcp: || true"};
  EXPECT_EQ(run({}, doctor).said[0], "");
  on(3, "ip link set cable1n1 nomaster");
  const std::string said = run({}, doctor).said[0];
  EXPECT_THAT(said, AllOf(HasSubstr("net1 (10.231.8.1) does not reach host1 at 10.231.8.2"),
                          HasSubstr("net1 (10.231.8.2) does not reach host2 at 10.231.8.3"),
                          Not(HasSubstr("reach host0")), Not(HasSubstr("fault"))));
}

TEST_F(Rails, TwoPrivateNetworksOfTheSameAddressesAreNotTakenForOne) {
  STANDS_OR_SKIP("lan:4,cables=2,rate=0.05");
  on(4,
     "ip link add apart type bridge && ip link set apart up && ip link set cable2n1 master apart "
     "&& ip link set cable3n1 master apart");
  for (const int host : {2, 3}) {  // like host0 and host1
    on(host,
       fmt::format("ip addr flush dev net1 && ip addr add 10.231.8.{}/24 dev net1", host - 1));
  }
  const Outcome outcome = run();
  ASSERT_TRUE(outcome.well()) << outcome.all();
  for (std::size_t rank = 0; rank < 4; ++rank) {
    EXPECT_GT(outcome.share(rank, "net0"), 0.4) << outcome.all();
  }
}

TEST_F(Rails, AnInterfaceWithoutACableDelaysNothing) {
  STANDS_OR_SKIP("lan:2,cables=2,rate=0.05");
  on(1, "ip link set net1 down");
  const Outcome outcome = run();
  ASSERT_TRUE(outcome.well()) << outcome.all();
  EXPECT_THAT(outcome.all(), Not(HasSubstr("no path"))) << "it is not even tried";
  EXPECT_LT(outcome.share(0, "net1"), 0.001) << outcome.all();
}

}  // namespace
}  // namespace chorus::perf
