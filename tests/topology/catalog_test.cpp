#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/topology/graph.hpp"
#include "tests/topology/refusal.hpp"
#include "topology/discover/sources.hpp"

namespace chorus {
namespace {

using test::gb_s;
using test::refusal;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Catalog, EveryEntryIsSoundAndConnected) {
  for (const CatalogEntry& entry : catalog()) {
    const Topology t = topology_from_name(entry.name);
    EXPECT_EQ(t.name, entry.name);
    EXPECT_EQ(test::unsound(t), "") << entry.name;
    EXPECT_TRUE(test::connected(t)) << entry.name;
    EXPECT_GT(t.world_size(), 1) << entry.name;
    EXPECT_FALSE(entry.summary.empty()) << entry.name;
  }
}

TEST(Catalog, EveryNameWorksAsACluster) {
  for (const std::string name : {"dgx1", "ndv2", "p3dn", "dgx2", "dgx-a100", "dgx-h100", "mi250x",
                                 "mi250", "mi300x", "z52", "pcie4", "pcie8", "cpu:2x4"}) {
    const int one = topology_from_name(name).world_size();
    const Topology t = topology_from_name("3*" + name);
    EXPECT_EQ(t.world_size(), 3 * one) << name;
    EXPECT_EQ(test::unsound(t), "") << name;
    EXPECT_TRUE(test::connected(t)) << name;
  }
}

TEST(Catalog, GpusOfABoxGetTheRatesOfItsDataSheet) {
  struct Case {
    std::string name;
    int gpus;
    double into_each_gb_s;
  };
  for (const Case& c : {Case{"dgx1", 8, 150}, Case{"ndv2", 8, 150}, Case{"dgx2", 16, 150},
                        Case{"dgx-a100", 8, 300}, Case{"dgx-h100", 8, 450}, Case{"nvl72", 72, 900},
                        Case{"mi300x", 8, 448}, Case{"ring:8", 8, 2}, Case{"torus:4x4", 16, 4},
                        Case{"torus:3x4x5", 60, 6}, Case{"hypercube:4", 16, 4},
                        Case{"full-mesh:5", 5, 4}, Case{"torus:2x2", 4, 2}, Case{"ring:2", 2, 1}}) {
    const Topology t = topology_from_name(c.name);
    ASSERT_EQ(t.world_size(), c.gpus) << c.name;
    for (const int node : t.rank_nodes) {
      EXPECT_NEAR(test::ingress(t, node), c.into_each_gb_s, 1e-6) << c.name;
    }
  }
}

TEST(Catalog, LansHaveTheirHostsAtSwitchesInARow) {
  const Topology pairs = topology_from_name("pairs");
  EXPECT_EQ(pairs.world_size(), 4);
  const Topology same = topology_from_name("lan:2x2,trunk=0.025");
  EXPECT_EQ(pairs.links, same.links);
  for (const int node : pairs.rank_nodes) EXPECT_NEAR(test::ingress(pairs, node), 0.25, 1e-9);
  const Topology slow = topology_from_name("slow");
  EXPECT_NEAR(test::ingress(slow, slow.rank_nodes[3]), 0.025, 1e-9);
  EXPECT_NEAR(test::ingress(slow, slow.rank_nodes[2]), 0.25, 1e-9);
  const Topology islands = topology_from_name("islands");
  EXPECT_EQ(islands.world_size(), 8);
  EXPECT_EQ(islands.links.size(), 2U * (8 + 2));
  EXPECT_THAT(refusal("pairs:2"), HasSubstr("pairs"));
  EXPECT_THAT(refusal("lan:4,leaf=2"), HasSubstr("leaf"));
}

TEST(Catalog, DiesOfAnMi250NodeHaveTheLinksOfTheirMatrix) {
  const Topology t = topology_from_name("mi250x");
  // Row 0 of the published matrix: 0 4 0 0 2 0 1 0, of 50 GB/s each.
  EXPECT_NEAR(test::ingress(t, t.rank_nodes[0]), 350, 1e-6);
  EXPECT_NEAR(test::ingress(t, t.rank_nodes[1]), 300, 1e-6);
  const Topology sixteen = topology_from_name("mi250");
  EXPECT_NEAR(test::ingress(sixteen, sixteen.rank_nodes[0]), 350, 1e-6);
}

TEST(Catalog, BoxesOfAClusterMeetThroughTheirNics) {
  const struct {
    const char* name;
    double out_of_box_gb_s;
  } kCases[] = {{"2*dgx-a100", 200}, {"4*dgx-h100", 400},    {"2*ndv2", 12.5},
                {"2*dgx1", 50},      {"2*dgx2", 100},        {"2*mi250", 256},
                {"2*mi250x", 100},   {"2*pcie8,nic=25", 25}, {"2*dgx-a100,rails=yes", 200}};
  for (const auto& c : kCases) {
    const Topology t = topology_from_name(c.name);
    EXPECT_NEAR(test::leaving(t, "host0/"), c.out_of_box_gb_s, 1e-6) << c.name;
    EXPECT_EQ(t.nodes[t.rank_nodes.back()].name.substr(0, 4), "host") << c.name;
  }
  const Topology t = topology_from_name("2*dgx-a100");
  EXPECT_NEAR(test::ingress(t, t.rank_nodes[0]), 325, 1e-6);
  EXPECT_NEAR(test::alpha_from(t, t.rank_nodes[0])[t.rank_nodes[8]], 1.7e-6, 1e-12);
  EXPECT_NEAR(test::alpha_from(t, t.rank_nodes[0])[t.rank_nodes[1]], 0.7e-6, 1e-12);
}

TEST(Catalog, ASharedNicIsOneResourceForAllItsGpus) {
  const Topology t = topology_from_name("2*ndv2");
  ASSERT_EQ(t.port_groups.size(), 4U);
  EXPECT_EQ(t.port_groups[0].name, "host0/nic0 out");
  EXPECT_EQ(t.port_groups[0].links.size(), 8U);
  EXPECT_NEAR(gb_s(t.port_groups[0].beta_s_per_byte), 12.5, 1e-9);
}

TEST(Catalog, GpusBehindAPcieSwitchShareItsUplink) {
  const Topology t = topology_from_name("pcie8,gen=3");
  EXPECT_EQ(t.world_size(), 8);
  EXPECT_NEAR(test::leaving(t, "pcie0"), 5 * 12, 1e-6);  // four GPUs and one uplink
  EXPECT_NEAR(test::leaving(t, "cpu0"), 12 + 22, 1e-6);
}

TEST(Generators, AFatTreeIsOversubscribedAtEveryLevel) {
  const Topology t = topology_from_name("fat-tree:2x4x8,rate=10,over=2");
  EXPECT_EQ(t.world_size(), 64);
  EXPECT_NEAR(test::leaving(t, "switch0.0"), 8 * 10 + 40, 1e-6);
  EXPECT_NEAR(test::ingress(t, 0), 2 * 4 * 40 / 2.0, 1e-6);
}

TEST(Generators, EveryPairOfDragonflyGroupsHasOneGlobalLink) {
  const Topology t = topology_from_name("dragonfly:9x4x2,global=0.5");
  EXPECT_EQ(t.world_size(), 72);
  EXPECT_TRUE(test::connected(t));
  int global = 0;
  for (const Topology::Link& link : t.links) global += link.type == "global" ? 1 : 0;
  EXPECT_EQ(global, 9 * 8);
}

TEST(Generators, RatesAndLatenciesAreTheOnesGiven) {
  const Topology t = topology_from_name("mesh:2x3,rate=50,alpha=0.7");
  for (const Topology::Link& link : t.links) {
    EXPECT_NEAR(gb_s(link.beta_s_per_byte), 50, 1e-9);
    EXPECT_NEAR(link.alpha_s, 0.7e-6, 1e-15);
    EXPECT_EQ(link.provenance, Provenance::declared);
  }
  EXPECT_EQ(t.links.size(), 2U * 7U);
}

}  // namespace
}  // namespace chorus
