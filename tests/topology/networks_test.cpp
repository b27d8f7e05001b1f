// Claim: hosts that several networks join are a topology whose routes take all networks of a pair
// and whose limits are those of the cables, and what a schedule sends is divided among the networks
// so that no cable is busy for longer than it has to be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>

#include "model/price/cost.hpp"
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
  EXPECT_NEAR(rate(topology, routes, 0, 2), (82 + 51) * kMb, 1);
  EXPECT_NEAR(rate(topology, routes, 2, 0), (50 + 51) * kMb, 1) << "not all that either has";
  EXPECT_NEAR(rate(topology, routes, 2, 1), 50 * kMb, 1);
}

TEST(SeveralNetworks, NoRouteLeadsThroughAThirdHost) {
  ProbedNetwork network = three();
  network.further.front().hosts = {"b", "c"};  // a and b meet in the slow one only
  network.tree.out[0] = network.tree.in[0] = 10 * kMb;
  network.further.push_back(network.further.front());
  network.further.back().name = "10.2.0.0/24";
  network.further.back().hosts = {"a", "c"};
  network.cable_alpha_s = {0, 2e-4, 0};
  const Topology topology = topology_of(network, parts(3));
  const Routes routes(topology);
  for (const auto& [src, dst] : {std::pair(0, 1), std::pair(1, 0)}) {
    const auto wires = std::ranges::count_if(routes.path(src, dst), [&](int link) {
      return topology.links[static_cast<std::size_t>(link)].type == "ethernet";
    });
    EXPECT_EQ(wires, 1);
    EXPECT_NEAR(rate(topology, routes, src, dst), 10 * kMb, 1);
  }
}

/// Bytes per second, by name.
std::map<std::string, double> groups_of(const Topology& topology) {
  std::map<std::string, double> groups;
  for (const auto& group : topology.port_groups) groups[group.name] = 1 / group.beta_s_per_byte;
  return groups;
}

TEST(SeveralNetworks, WhatAHostSharesIsASumOverNetworks) {
  std::map<std::string, double> groups = groups_of(topology_of(three(), parts(3)));
  EXPECT_NEAR(groups["c out"], (50 + 51) * kMb, 1);
  EXPECT_NEAR(groups["a out"], (126 + 51) * kMb, 1);
  EXPECT_NEAR(groups["a in"], (126 + 51) * kMb, 1);
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
  std::map<std::string, double> groups = groups_of(topology);
  EXPECT_NEAR(groups["a+b to c+d"], 60 * kMb, 1);
  EXPECT_NEAR(groups["c+d to a+b"], 50 * kMb, 1);
  EXPECT_NEAR(groups["a+b to c+d by network 0 alone"], 40 * kMb, 1) << "all but what a sends to c";
  EXPECT_NEAR(groups["a out by network 0 alone"], 100 * kMb, 1);
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

/// 3 to 13 hosts, one network of all and one or two of most of them, of 10 to 250 MB/s, some cables
/// with another rate back, some with a trunk.
ProbedNetwork drawn(std::mt19937& draw) {
  const auto up_to = [&](int n) { return static_cast<int>(draw() % static_cast<unsigned>(n)); };
  std::uniform_real_distribution<> share(0, 1);
  const auto rate = [&] { return 10 * kMb * std::pow(25.0, share(draw)); };
  const auto tree = [&](std::size_t hosts) {
    HostTree made;
    for (std::size_t h = 0; h < hosts; ++h) {
      made.out.push_back(rate());
      made.in.push_back(up_to(4) == 0 ? rate() : made.out.back());
    }
    if (hosts > 3 && up_to(2) == 0) {
      HostTree::Group group{.hosts = {}, .out = rate(), .in = rate()};
      const int behind = 1 + up_to(static_cast<int>(hosts) / 2);
      for (int h = 0; h < behind; ++h) group.hosts.push_back(h);
      made.groups.push_back(group);
    }
    return made;
  };
  ProbedNetwork network;
  for (int h = 3 + up_to(11); h > 0; --h) network.hosts.push_back(std::string(1, char('a' + h)));
  network.tree = tree(network.hosts.size());
  network.cable_alpha_s.assign(network.hosts.size(), 2e-5);
  network.trunk_alpha_s.assign(network.tree.groups.size(), 1e-5);
  for (int further = 1 + up_to(2); further > 0; --further) {
    ProbedNetwork other{.name = std::to_string(further), .hosts = {}, .tree = {}};
    for (const std::string& host : network.hosts) {
      if (up_to(10) < 7) other.hosts.push_back(host);
    }
    if (other.hosts.size() < 2) other.hosts = network.hosts;
    other.tree = tree(other.hosts.size());
    other.cable_alpha_s.assign(other.hosts.size(), 0);
    network.further.push_back(other);
  }
  return network;
}

/// A ring in a drawn order, everybody to everybody, some amounts, or few of the pairs.
std::vector<Demand> drawn_demands(int hosts, std::mt19937& draw) {
  const auto up_to = [&](int n) { return static_cast<int>(draw() % static_cast<unsigned>(n)); };
  std::vector<Demand> demands;
  const int kind = up_to(4);
  if (kind == 0) {
    std::vector<int> order(static_cast<std::size_t>(hosts));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), draw);
    for (std::size_t i = 0; i < order.size(); ++i) {
      demands.push_back({order[i], order[(i + 1) % order.size()], kMb});
    }
    return demands;
  }
  for (int a = 0; a < hosts; ++a) {
    for (int b = 0; b < hosts; ++b) {
      const double bytes = kind == 1 ? kMb : kind == 2 ? kMb * (1 + up_to(3)) : kMb;
      if (a != b && (kind < 3 || up_to(4) == 0)) demands.push_back({a, b, bytes});
    }
  }
  if (demands.empty()) demands.push_back({0, 1, kMb});
  return demands;
}

/// Seconds that the busiest link or group of links between hosts takes for them.
double busiest_s(const Topology& topology, const std::vector<Demand>& demands) {
  const Routes routes(topology);
  std::vector<double> bytes(topology.links.size(), 0);
  for (const Demand& demand : demands) {
    for (const int link : routes.path(demand.src, demand.dst)) {
      bytes[static_cast<std::size_t>(link)] += demand.bytes;
    }
  }
  double most = 0;
  for (std::size_t l = 0; l < bytes.size(); ++l) {
    if (topology.links[l].type == "ethernet") {
      most = std::max(most, bytes[l] * topology.links[l].beta_s_per_byte);
    }
  }
  for (const auto& group : topology.port_groups) {
    if (group.message_s > 0) continue;  // of the cores
    double sum = 0;
    for (const int link : group.links) sum += bytes[static_cast<std::size_t>(link)];
    most = std::max(most, sum * group.beta_s_per_byte);
  }
  return most;
}

TEST(SeveralNetworks, LimitsAreThoseOfTheBestDivision) {
  std::vector<double> ratios;
  for (unsigned seed = 1; seed <= 150; ++seed) {
    std::mt19937 draw(seed);
    const ProbedNetwork network = drawn(draw);
    const int hosts = static_cast<int>(network.hosts.size());
    const Topology topology = topology_of(network, parts(hosts));
    for (int trial = 0; trial < 6; ++trial) {
      const std::vector<Demand> demands = drawn_demands(hosts, draw);
      const double least_s = divide(Networks(network), demands).seconds;
      ratios.push_back(least_s / busiest_s(topology, demands));
      EXPECT_GT(ratios.back(), 0.999) << "seed " << seed << ": a limit that a division exceeds";
    }
  }
  std::ranges::sort(ratios);
  const auto quantile = [&](std::size_t percent) { return ratios[ratios.size() * percent / 100]; };
  EXPECT_LT(quantile(50), 1.01);
  EXPECT_LT(quantile(95), 1.05);
  EXPECT_LT(quantile(99), 1.5);
}

}  // namespace
}  // namespace chorus::probing
