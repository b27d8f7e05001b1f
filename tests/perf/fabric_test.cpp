#include "perf/cluster/fabric.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "chorus/error.hpp"
#include "perf/cluster/command.hpp"
#include "perf/cluster/show.hpp"
#include "topology/discover/sources.hpp"

namespace chorus::perf {
namespace {

using ::testing::AllOf;
using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

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

TEST(Fabric, SwitchesThatNoTrunkJoinsAreNetworksOfTheirOwn) {
  const Fabric rails = fabric_named("3*dgx-a100,rails=yes");
  EXPECT_EQ(rails.hosts.size(), 3U);
  EXPECT_EQ(rails.num_networks, 8);
  EXPECT_NEAR(rails.rate(0, 2, 5), 25e9, 1);
  EXPECT_NEAR(rails.rate(0, 2), 200e9, 1);
  Topology one_missing = topology_from_name("lan:2x1");
  const auto node = [&](const char* name, NodeKind kind) {
    one_missing.nodes.push_back({name, kind, -1, ""});
    return static_cast<int>(one_missing.nodes.size()) - 1;
  };
  const int second = node("second", NodeKind::network_switch);
  for (const int rank : {0, 2}) {
    const int host = one_missing.rank_nodes[static_cast<std::size_t>(rank)];
    one_missing.links.push_back({host, second, 0, 1e-8, "ethernet"});
    one_missing.links.push_back({second, host, 0, 2e-8, "ethernet"});
  }
  const Fabric fabric = fabric_of(one_missing);
  EXPECT_EQ(fabric.num_networks, 2);
  EXPECT_TRUE(fabric.has_cable(2, 1));
  EXPECT_FALSE(fabric.has_cable(1, 1));
  EXPECT_NEAR(fabric.rate(0, 2, 1), 0.05e9, 1);
  EXPECT_EQ(fabric.rate(0, 1, 1), 0);
  const Batches batches = batches_for(fabric, {11, 12, 13, 14}, {});
  EXPECT_THAT(batches.addresses[2], HasSubstr("10.231.8.3/24 dev net1"));
  EXPECT_THAT(batches.addresses[1], Not(HasSubstr("net1")));
  EXPECT_THAT(batches.links, HasSubstr("link add cable2n1 mtu 1500 type veth peer name net1"));
}

TEST(Fabric, FasterCablesHaveFasterBuckets) {
  const auto rates = [](double speed) {
    return batches_for(fabric_named("pairs"), {11, 12, 13, 14, 15}, {.speed = speed}).host_rates[3];
  };
  EXPECT_THAT(rates(1), HasSubstr("rate 2000000000bit"));
  EXPECT_THAT(rates(4), HasSubstr("rate 8000000000bit"));
}

/// The rates of all cables, up and down, are within what the drawing promises, and every host
/// reaches every other through the first network.
void expect_sound(const Fabric& fabric) {
  EXPECT_GE(fabric.hosts.size(), 2U);
  EXPECT_LE(fabric.hosts.size(), 12U);
  EXPECT_LE(fabric.num_networks, 3);
  EXPECT_LE(fabric.num_switches, 5 * fabric.num_networks);
  const int hosts = static_cast<int>(fabric.hosts.size());
  for (const Fabric::Cable& cable : fabric.cables) {
    for (const double rate : {cable.there_bytes_per_s, cable.back_bytes_per_s}) {
      EXPECT_GE(rate, 0.9999e7);
      EXPECT_LE(rate, cable.a < hosts ? 250.001e6 : 12 * 250.001e6);
    }
  }
  for (int from = 0; from < hosts; ++from) {
    for (int to = 0; to < hosts; ++to) {
      EXPECT_GT(fabric.rate(from, to, 0), 0) << from << " to " << to;
    }
  }
}

TEST(RandomClusters, AreSoundAndDifferent) {
  int one_way = 0, several = 0, partial = 0, slow_trunks = 0;
  for (int seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    const std::string name = fmt::format("random:{}", seed);
    const Fabric fabric = cluster_fabric(name);
    expect_sound(fabric);
    EXPECT_EQ(cluster_topology(name, {}), cluster_topology(name, {}));
    const int hosts = static_cast<int>(fabric.hosts.size());
    several += fabric.num_networks > 1 ? 1 : 0;
    for (const Fabric::Cable& cable : fabric.cables) {
      one_way += cable.there_bytes_per_s != cable.back_bytes_per_s ? 1 : 0;
      slow_trunks += cable.a >= hosts && cable.there_bytes_per_s < 0.05e9 ? 1 : 0;
    }
    for (int k = 1; k < fabric.num_networks; ++k) partial += fabric.has_cable(0, k) ? 0 : 1;
  }
  EXPECT_GT(one_way, 100);
  EXPECT_GT(several, 100);
  EXPECT_GT(partial, 30);
  EXPECT_GT(slow_trunks, 100);
}

TEST(RandomClusters, NamesAreThoseOfTheTopologies) {
  EXPECT_EQ(cluster_topology("random:7", {}), topology_from_name("random-lan:7"));
  EXPECT_NE(cluster_topology("random:7", {}).links, cluster_topology("random:8", {}).links);
}

TEST(RandomClusters, WhatIsAskedForIsNotDrawn) {
  const std::string name = "random:3,hosts=5,switches=2,cables=2,rate=0.04,least=0.02,ranks=2";
  const Fabric fabric = cluster_fabric(name);
  EXPECT_EQ(fabric.hosts.size(), 5U);
  EXPECT_EQ(fabric.host_of_rank.size(), 10U);
  EXPECT_EQ(fabric.num_networks, 2);
  EXPECT_EQ(fabric.num_switches, 4);
  for (const Fabric::Cable& cable : fabric.cables) {
    EXPECT_LE(cable.there_bytes_per_s, (cable.a < 5 ? 1 : 5) * 0.0400001e9);
    EXPECT_GE(cable.there_bytes_per_s, 0.0199999e9);
  }
}

TEST(RandomClusters, MistakesAreRefusedWithTheirColumn) {
  const auto refused = [](const std::string& name) -> std::string {
    try {
      (void)cluster_fabric(name);
    } catch (const InputError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(refused("random:7,hosts=1"),
              AllOf(HasSubstr("\"random-lan:7,hosts=1\", column 20"), HasSubstr("from 2 to 250")));
  EXPECT_THAT(refused("random:7,cables=9"), AllOf(HasSubstr("column 21"), HasSubstr("1 to 8")));
  EXPECT_THAT(refused("random:7,hosts=3,switches=4"),
              AllOf(HasSubstr("column 31"), HasSubstr("1 to 3")));
  EXPECT_THAT(refused("random:7,rate=0.1,least=0.2"),
              AllOf(HasSubstr("column 29"), HasSubstr("at most 0.1")));
  EXPECT_THAT(refused("random:seven"), HasSubstr("column 12"));
  EXPECT_THAT(refused("random"), HasSubstr("column 7"));
  EXPECT_THAT(refused("random:7x2"), HasSubstr("column 12"));
  EXPECT_THAT(refused("random:7,trunks=2"), AllOf(HasSubstr("column 14"), HasSubstr("switches")));
}

/// Trunks of a topology: MB/s by the names of their ends.
std::map<std::string, double> trunks_of(const Topology& t) {
  std::map<std::string, double> trunks;
  for (const Topology::Link& link : t.links) {
    const auto& src = t.nodes[static_cast<std::size_t>(link.src)];
    const auto& dst = t.nodes[static_cast<std::size_t>(link.dst)];
    if (src.kind == NodeKind::network_switch && dst.kind == NodeKind::network_switch) {
      trunks[src.name + ">" + dst.name] += 1e-6 / link.beta_s_per_byte;
    }
  }
  return trunks;
}

TEST(Rings, LoseTheirSlowestTrunkInTheEmulatorAndInItsBounds) {
  Topology ring = topology_from_name("lan:1x1x1,trunk=0.1");
  const auto node = [&](const char* name) {
    for (std::size_t i = 0; i < ring.nodes.size(); ++i) {
      if (ring.nodes[i].name == name) return static_cast<int>(i);
    }
    return -1;
  };
  ring.links.push_back({node("switch2"), node("switch0"), 0, 1 / 0.2e9, "ethernet"});
  ring.links.push_back({node("switch0"), node("switch2"), 0, 1 / 0.15e9, "ethernet"});
  ring.links[2].beta_s_per_byte = 1 / 0.05e9;  // from switch0 to switch1 slower than back
  ring.port_groups.push_back({"last", {2, 8}, 1e-9});
  ASSERT_EQ(trunks_of(ring).at("switch0>switch1"), 50);
  const Topology tree = spanned(ring);
  EXPECT_THAT(trunks_of(tree), ElementsAre(Pair("switch0>switch2", DoubleNear(150, 1e-6)),
                                           Pair("switch1>switch2", DoubleNear(100, 1e-6)),
                                           Pair("switch2>switch0", DoubleNear(200, 1e-6)),
                                           Pair("switch2>switch1", DoubleNear(100, 1e-6))));
  EXPECT_EQ(tree.links.size(), ring.links.size() - 2);
  ASSERT_EQ(tree.port_groups.size(), 1U);
  EXPECT_THAT(tree.port_groups[0].links, ElementsAre(6));  // two links before it are gone
  EXPECT_NEAR(fabric_of(tree).rate(0, 1), 0.1e9, 1);
  EXPECT_EQ(spanned(tree), tree);
}

TEST(Rings, AreDrawnWhereAskedForAndStillSound) {
  for (int seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(seed);
    const std::string name = fmt::format("random:{},ring=yes", seed);
    const Topology whole = topology_from_name("random-lan:" + name.substr(7));
    const Fabric fabric = cluster_fabric(name);
    expect_sound(fabric);
    const auto switches = static_cast<std::size_t>(fabric.num_switches);
    EXPECT_GE(switches, 3 * static_cast<std::size_t>(fabric.num_networks));
    EXPECT_EQ(trunks_of(whole).size(), 2 * switches);  // as many trunks as switches
    EXPECT_EQ(trunks_of(cluster_topology(name, {})).size(),
              2 * (switches - static_cast<std::size_t>(fabric.num_networks)));
  }
  EXPECT_THROW((void)cluster_fabric("random:1,ring=yes,switches=2"), InputError);
  EXPECT_THROW((void)cluster_fabric("random:1,ring=maybe"), InputError);
}

TEST(ShownCluster, NamesHostsCablesTrunksAndBounds) {
  const std::string text = described(cluster_topology("lan:2x1,cables=2,rate=0.1,trunk=0.05", {}),
                                     cluster_fabric("lan:2x1,cables=2,rate=0.1,trunk=0.05"));
  EXPECT_THAT(text,
              AllOf(HasSubstr("hosts 3, ranks 3, networks 2, switches 4"), HasSubstr("100 at sw0"),
                    HasSubstr("net1 MB/s"), HasSubstr("sw0 to sw1"), HasSubstr("25\n")));
  // 16 MiB at 50 MB/s each way into host2, a third of it there already.
  EXPECT_THAT(text, HasSubstr("223.7"));
  Topology slower = topology_from_name("lan:2");
  slower.links[0].beta_s_per_byte *= 2;
  EXPECT_THAT(described(slower, fabric_of(slower)), HasSubstr("125 up, 250 down"));
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
  const Fabric fabric = cluster_fabric(name);
  ASSERT_EQ(fabric.num_networks, 3);
  EXPECT_EQ(fabric.num_switches, 6);
  EXPECT_NEAR(fabric.rate(0, 1), 0.22e9, 1);  // of all cables
  EXPECT_NEAR(fabric.rate(0, 2), 0.05e9, 1);
  EXPECT_NEAR(fabric.rate(0, 1, 1), 0.02e9, 1);
  EXPECT_NEAR(fabric.rate(0, 2, 2), 0.05e9 * 0.1 / 0.22, 1);
  EXPECT_EQ(fabric.address(2, 0), fabric.hosts[2].address);
  EXPECT_EQ(fabric.address(2, 1), "10.231.8.3");
  const Batches batches = batches_for(fabric, {11, 12, 13, 14}, {});
  EXPECT_THAT(batches.links, AllOf(HasSubstr("name net0 mtu 1500 netns 11"),
                                   HasSubstr("name net2 mtu 1500 netns 13")));
  EXPECT_THAT(batches.host_rates[0], AllOf(HasSubstr("dev net0 root tbf rate 800000000bit"),
                                           HasSubstr("dev net1 root tbf rate 160000000bit"),
                                           HasSubstr("dev net2 root tbf rate 800000000bit")));
  EXPECT_THAT(batches.addresses[1],
              AllOf(HasSubstr("10.231.7.2/24 dev net0"), HasSubstr("10.231.9.2/24 dev net2")));
}

TEST(Fabric, OneCableIsTheDefaultAndNineAreTooMany) {
  for (const char* name : {"lan:4", "pairs", "2*cpu:1x2"}) {
    EXPECT_EQ(cluster_fabric(name).num_networks, 1) << name;
  }
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
