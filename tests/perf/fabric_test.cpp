#include "perf/cluster/fabric.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "chorus/error.hpp"
#include "perf/cluster/command.hpp"
#include "topology/sources.hpp"

namespace chorus::perf {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Fabric fabric_named(const std::string& name) { return fabric_of(topology_from_name(name)); }

std::string refusal(const Topology& topology) {
  try {
    (void)fabric_of(topology);
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Fabric, HasTheHostsTrunksAndRatesOfItsTopology) {
  const Fabric pairs = fabric_named("pairs");
  EXPECT_EQ(pairs.hosts.size(), 4U);
  EXPECT_EQ(pairs.num_switches, 2);
  EXPECT_EQ(pairs.cables.size(), 5U);
  EXPECT_NEAR(pairs.rate(0, 1), 0.25e9, 1);
  EXPECT_NEAR(pairs.rate(1, 2), 0.025e9, 1);
  EXPECT_NEAR(pairs.rate(3, 0), 0.025e9, 1);
  const Fabric slow = fabric_named("slow");
  EXPECT_NEAR(slow.rate(0, 2), 0.25e9, 1);
  EXPECT_NEAR(slow.rate(0, 3), 0.025e9, 1);
  EXPECT_EQ(fabric_named("islands").cables.size(), 10U);
}

TEST(Fabric, RatesOfTheTwoDirectionsAreKeptApart) {
  Topology t = topology_from_name("lan:2");
  t.links[0].beta_s_per_byte *= 4;  // host0 sends at a quarter
  const Fabric fabric = fabric_of(t);
  EXPECT_NEAR(fabric.rate(0, 1), 0.0625e9, 1);
  EXPECT_NEAR(fabric.rate(1, 0), 0.25e9, 1);
}

TEST(Fabric, RanksOfOneBoxShareItsHostAndItsCable) {
  const Fabric fabric = fabric_named("3*cpu:1x2,nic=0.5");
  EXPECT_EQ(fabric.hosts.size(), 3U);
  EXPECT_EQ(fabric.num_switches, 1);
  EXPECT_THAT(fabric.host_of_rank, ElementsAre(0, 0, 1, 1, 2, 2));
  EXPECT_THAT(fabric.ranks_on(1), ElementsAre(2, 3));
  EXPECT_NEAR(fabric.rate(0, 2), 0.5e9, 1);
}

TEST(Fabric, TwoHostsBackToBackGetASwitchBetweenThem) {
  const Fabric fabric = fabric_named("ring:2,rate=0.125");
  EXPECT_EQ(fabric.num_switches, 1);
  EXPECT_NEAR(fabric.rate(0, 1), 0.125e9, 1);
  EXPECT_NEAR(fabric.rate(1, 0), 0.125e9, 1);
}

TEST(Fabric, WhatBridgesCannotDoIsRefusedByName) {
  EXPECT_THAT(refusal(topology_from_name("ring:4")), HasSubstr("more than one cable"));
  EXPECT_THAT(refusal(topology_from_name("2*dgx-a100,rails=yes")), HasSubstr("host0"));
  EXPECT_THAT(refusal(topology_from_name("lan:251")), HasSubstr("250 hosts"));
  Topology cut = topology_from_name("pairs");
  std::erase_if(cut.links, [&](const Topology::Link& link) {
    return cut.nodes[static_cast<std::size_t>(link.src)].kind == NodeKind::network_switch &&
           cut.nodes[static_cast<std::size_t>(link.dst)].kind == NodeKind::network_switch;
  });
  EXPECT_THAT(refusal(cut), HasSubstr("nothing connects host0 with host2"));
  Topology shared = topology_from_name("lan:3");
  shared.port_groups.push_back({"backplane", {0, 2}, 1e-8});
  EXPECT_THAT(refusal(shared), HasSubstr("'backplane' is shared by several cables"));
  Topology loop = topology_from_name("lan:1x1x1");
  const auto node = [&](const char* name) {
    for (std::size_t i = 0; i < loop.nodes.size(); ++i) {
      if (loop.nodes[i].name == name) return static_cast<int>(i);
    }
    return -1;
  };
  loop.links.push_back({node("switch0"), node("switch2"), 0, 1e-9, "ethernet"});
  loop.links.push_back({node("switch2"), node("switch0"), 0, 1e-9, "ethernet"});
  EXPECT_THAT(refusal(loop), HasSubstr("cycle"));
}

TEST(Fabric, AnOrderPutsRanksInOthersPlaces) {
  const Fabric fabric = fabric_of(cluster_topology("pairs", {0, 2, 1, 3}));
  EXPECT_THAT(fabric.host_of_rank, ElementsAre(0, 1, 2, 3));  // hosts are numbered by first rank
  EXPECT_NEAR(fabric.rate(0, 2), 0.25e9, 1);
  EXPECT_NEAR(fabric.rate(0, 1), 0.025e9, 1);
  EXPECT_THROW((void)cluster_topology("pairs", {0, 0, 1, 3}), InputError);
  EXPECT_THROW((void)cluster_topology("pairs", {0, 1}), InputError);
}

TEST(Fabric, HostsOfANameWithSeveralCablesHaveOneInEachNetwork) {
  const std::string name = "lan:2x1,cables=3,rate=0.1,rate2=0.02,trunk=0.05";
  const Fabric fabric = fabric_of(cluster_topology(name, {}));
  const std::vector<double> shares = cluster_shares(name);
  ASSERT_EQ(shares.size(), 3U);
  EXPECT_NEAR(fabric.rate(0, 1), 0.22e9, 1);  // of all cables
  EXPECT_NEAR(fabric.rate(0, 2), 0.05e9, 1);
  EXPECT_NEAR(shares[1], 0.02 / 0.22, 1e-9);
  EXPECT_EQ(fabric.address(2, 0), fabric.hosts[2].address);
  EXPECT_EQ(fabric.address(2, 1), "10.231.8.3");
  const Batches batches = batches_for(fabric, {11, 12, 13, 14}, {.shares = shares});
  EXPECT_THAT(batches.links, AllOf(HasSubstr("name net0 mtu 1500 netns 11"),
                                   HasSubstr("name net2 mtu 1500 netns 13")));
  EXPECT_THAT(batches.host_rates[0], AllOf(HasSubstr("dev net0 root tbf rate 800000000bit"),
                                           HasSubstr("dev net1 root tbf rate 160000000bit"),
                                           HasSubstr("dev net2 root tbf rate 800000000bit")));
  EXPECT_THAT(batches.addresses[1],
              AllOf(HasSubstr("10.231.7.2/24 dev net0"), HasSubstr("10.231.9.2/24 dev net2")));
}

TEST(Fabric, OneCableIsTheDefaultAndNineAreTooMany) {
  EXPECT_THAT(cluster_shares("lan:4"), ElementsAre(1.0));
  EXPECT_THAT(cluster_shares("pairs"), ElementsAre(1.0));
  EXPECT_THAT(cluster_shares("2*cpu:1x2"), ElementsAre(1.0));
  for (const char* name : {"lan:4,cables=0", "lan:4,cables=9", "lan:4,rate2=1", "lan:4,cables=x"}) {
    EXPECT_THROW((void)cluster_topology(name, {}), InputError) << name;
  }
}

TEST(Batches, ShapeEveryCableInBothDirections) {
  const Fabric fabric = fabric_named("slow");
  const Batches batches = batches_for(fabric, {11, 12, 13, 14, 15}, {});
  EXPECT_THAT(batches.links, AllOf(HasSubstr("name net0 mtu 1500 netns 11"),
                                   HasSubstr("name net0 mtu 1500 netns 14")));
  EXPECT_THAT(batches.host_rates[0],
              HasSubstr("dev net0 root tbf rate 2000000000bit burst 131072"));
  EXPECT_THAT(batches.host_rates[3], HasSubstr("rate 200000000bit"));
  EXPECT_THAT(batches.switch_rates, HasSubstr("rate 200000000bit"));
  EXPECT_THAT(batches.addresses[3], HasSubstr("10.231.7.4/24"));
}

TEST(Payload, IsWhatHeadersLeave) {
  EXPECT_NEAR(payload_share(1500), 1448.0 / 1514, 1e-12);
  EXPECT_GT(payload_share(9000), 0.99);
}

}  // namespace
}  // namespace chorus::perf
