// Claim: hosts that several networks join are a topology whose routes take all networks of a pair
// and whose limits are those of the cables, and what a schedule sends is divided among the networks
// so that no cable is busy for longer than it has to be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "model/cost.hpp"
#include "topology/probing/division.hpp"
#include "topology/probing/probed_network.hpp"

namespace chorus::probing {
namespace {

using ::testing::ElementsAre;

constexpr double kMb = 1e6;

/// Three hosts; the middle one has no cable into the second network.
ProbedNetwork three() {
  return {.hosts = {"a", "b", "c"},
          .tree = {.out = {126 * kMb, 126 * kMb, 50 * kMb},
                   .in = {126 * kMb, 126 * kMb, 82 * kMb},
                   .groups = {}},
          .cable_alpha_s = {1e-5, 1e-5, 1e-5},
          .further = {{.name = "10.1.0.0/24",
                       .hosts = {"a", "c"},
                       .tree = {.out = {51 * kMb, 155 * kMb}, .in = {51 * kMb, 155 * kMb}},
                       .cable_alpha_s = {0, 0}}}};
}

std::vector<HostPart> parts(int hosts) {
  std::vector<HostPart> result;
  for (int h = 0; h < hosts; ++h) result.push_back({.host = h, .ranks = {h}, .memory = {}});
  return result;
}

/// Bytes per second from one rank to another with nothing beside it.
double rate(const Topology& topology, const Routes& routes, Rank src, Rank dst) {
  double beta = 0;
  for (const int link : routes.path(src, dst)) {
    beta = std::max(beta, topology.links[static_cast<std::size_t>(link)].beta_s_per_byte);
  }
  return 1 / beta;
}

TEST(SeveralNetworks, APairHasWhatAllItsNetworksCarry) {
  const Topology topology = topology_of(three(), parts(3));
  const Routes routes(topology);
  EXPECT_NEAR(rate(topology, routes, 0, 1), 126 * kMb, 1);
  EXPECT_NEAR(rate(topology, routes, 0, 2), (126 + 51) * kMb, 1);
  EXPECT_NEAR(rate(topology, routes, 2, 0), (126 + 51) * kMb, 1);
  EXPECT_NEAR(rate(topology, routes, 2, 1), 50 * kMb, 1);
}

TEST(SeveralNetworks, WhatIsConfinedToOneSharesItsCable) {
  const Topology topology = topology_of(three(), parts(3));
  std::map<std::string, double> groups;
  for (const auto& group : topology.port_groups) groups[group.name] = 1 / group.beta_s_per_byte;
  ASSERT_TRUE(groups.contains("c/networks 0+1 out"));
  EXPECT_NEAR(groups["c/networks 0+1 out"], 205 * kMb, 1)
      << "by both trees no more than both cables";
  EXPECT_NEAR(groups["a/networks 0+1 in"], 177 * kMb, 1);
}

TEST(SeveralNetworks, ATrunkOfOneLimitsThoseOfAllSetsThatItIsIn) {
  ProbedNetwork network{
      .hosts = {"a", "b", "c", "d"},
      .tree = {.out = std::vector<double>(4, 100 * kMb),
               .in = std::vector<double>(4, 100 * kMb),
               .groups = {{.hosts = {0, 1}, .out = 40 * kMb, .in = 30 * kMb}}},
      .cable_alpha_s = std::vector<double>(4, 1e-5),
      .trunk_alpha_s = {2e-5},
      .further = {{.name = "n",
                   .hosts = {"a", "c"},
                   .tree = {.out = {20 * kMb, 20 * kMb}, .in = {20 * kMb, 20 * kMb}},
                   .cable_alpha_s = {0, 0}}}};
  const Topology topology = topology_of(network, parts(4));
  const Routes routes(topology);
  EXPECT_NEAR(rate(topology, routes, 0, 3), 40 * kMb, 1);
  EXPECT_NEAR(rate(topology, routes, 3, 0), 30 * kMb, 1);
  EXPECT_NEAR(rate(topology, routes, 0, 2), 60 * kMb, 1);
  EXPECT_NEAR(rate(topology, routes, 0, 1), 100 * kMb, 1);
  std::map<std::string, double> groups;
  for (const auto& group : topology.port_groups) groups[group.name] = 1 / group.beta_s_per_byte;
  EXPECT_NEAR(groups["trunk0/networks 0+1 out"], 60 * kMb, 1);
  EXPECT_NEAR(groups["trunk0/networks 0+1 in"], 50 * kMb, 1);
}

TEST(SeveralNetworks, APartOfThemKeepsWhatJoinsItsHosts) {
  const ProbedNetwork both = restricted(three(), {"c", "a"});
  ASSERT_EQ(both.further.size(), 1U);
  EXPECT_THAT(both.further[0].hosts, ElementsAre("c", "a"));
  EXPECT_THAT(both.further[0].tree.out, ElementsAre(155 * kMb, 51 * kMb));
  EXPECT_TRUE(restricted(three(), {"a", "b"}).further.empty());
  EXPECT_NE(describe(three()).find("network 10.1.0.0/24"), std::string::npos);
}

// Hosts of two racks that are cabled one to one, too: each such cable is a network, all of them
// cross the racks' trunk beside it, and sets of n have 2^n unions.
TEST(SeveralNetworks, ManyThatJoinTwoHostsEachAreNoMoreThanCanBeCounted) {
  constexpr int kInRack = 16, kHosts = 2 * kInRack;
  ProbedNetwork network;
  HostTree::Group rack{.hosts = {}, .out = 300 * kMb, .in = 300 * kMb};
  for (int h = 0; h < kHosts; ++h) network.hosts.push_back("host" + std::to_string(h));
  for (int h = 0; h < kInRack; ++h) {
    rack.hosts.push_back(h);
    network.further.push_back(
        {.name = std::to_string(h),
         .hosts = {"host" + std::to_string(h), "host" + std::to_string(h + kInRack)},
         .tree = {.out = {50 * kMb, 50 * kMb}, .in = {50 * kMb, 50 * kMb}},
         .cable_alpha_s = {0, 0}});
  }
  network.tree = {.out = std::vector<double>(kHosts, 100 * kMb),
                  .in = std::vector<double>(kHosts, 100 * kMb),
                  .groups = {rack}};
  network.cable_alpha_s.assign(kHosts, 1e-5);
  network.trunk_alpha_s = {0};
  const Topology topology = topology_of(network, parts(kHosts));
  EXPECT_LT(topology.port_groups.size(), 1000U);
  const Routes routes(topology);
  EXPECT_NEAR(rate(topology, routes, 0, kInRack), 150 * kMb, 1);
  EXPECT_NEAR(rate(topology, routes, 0, 1), 100 * kMb, 1);
}

TEST(Division, LeavesToOthersWhatOnlyOneNetworkCarries) {
  const Networks networks(three());
  // c's 50 MB/s of the first network are the only way to b.
  const std::vector<Demand> demands = {{.src = 2, .dst = 1, .bytes = 50},
                                       {.src = 2, .dst = 0, .bytes = 50}};
  const Division division = divide(networks, demands);
  EXPECT_THAT(division.demands[0].networks, ElementsAre(0));
  EXPECT_THAT(division.demands[0].shares, ElementsAre(1));
  EXPECT_THAT(division.demands[1].networks, ElementsAre(0, 1));
  EXPECT_LT(division.demands[1].shares[0], 0.03);
  EXPECT_NEAR(division.seconds * kMb, 1, 0.03);
}

// The busiest cable of the best division of one demand is what cables together allow.
TEST(Division, OfOneDemandIsByTheRates) {
  std::minstd_rand random(1);
  for (int draw = 0; draw < 50; ++draw) {
    ProbedNetwork network{.hosts = {"a", "b"}};
    double sum = 0;
    const int further = 1 + static_cast<int>(random() % 3);
    for (int n = 0; n <= further; ++n) {
      const double rate = kMb * static_cast<double>(10 + random() % 90);
      sum += rate;
      const HostTree tree{.out = {rate, 2 * rate}, .in = {2 * rate, rate}};
      if (n == 0) {
        network.tree = tree;
      } else {
        network.further.push_back(
            {.name = std::to_string(n), .hosts = network.hosts, .tree = tree});
      }
    }
    const std::vector<Demand> demands = {{.src = 0, .dst = 1, .bytes = 1e8}};
    const Division division = divide(Networks(network), demands);
    EXPECT_LT(division.seconds, 1.05 * 1e8 / sum) << draw;
    EXPECT_GE(division.seconds, 0.999 * 1e8 / sum) << draw;
    double shares = 0;
    for (const double share : division.demands[0].shares) shares += share;
    EXPECT_NEAR(shares, 1, 1e-9);
  }
}

// What one cable of many limits needs nothing divided: two at once arrive with the slower one.
TEST(Division, TakesFewNetworksWhereMoreGiveNothing) {
  ProbedNetwork network{
      .hosts = {"a", "b", "c"},
      .tree = {.out = {1 * kMb, 100 * kMb, 100 * kMb}, .in = {100 * kMb, 100 * kMb, 100 * kMb}}};
  network.further.push_back({.name = "n",
                             .hosts = {"b", "c"},
                             .tree = {.out = {90 * kMb, 90 * kMb}, .in = {90 * kMb, 90 * kMb}}});
  const std::vector<Demand> demands = {{.src = 0, .dst = 1, .bytes = 1e6},
                                       {.src = 1, .dst = 2, .bytes = 1e6}};
  const Division division = divide(Networks(network), demands);
  EXPECT_NEAR(division.seconds, 1, 1e-6);
  std::multiset<double> shares(division.demands[1].shares.begin(),
                               division.demands[1].shares.end());
  EXPECT_THAT(shares, ElementsAre(0, 1));
}

}  // namespace
}  // namespace chorus::probing
