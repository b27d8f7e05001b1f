#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>

#include "model/price/cost.hpp"
#include "tests/topology/graph.hpp"
#include "tests/topology/refusal.hpp"
#include "topology/discover/sources.hpp"

namespace chorus {
namespace {

using test::gb_s;
using test::refusal;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// GB/s from one node to another, by their names; 0 where no cable leads.
double rate(const Topology& t, std::string_view from, std::string_view to) {
  for (const Topology::Link& link : t.links) {
    if (t.nodes[link.src].name == from && t.nodes[link.dst].name == to) {
      return gb_s(link.beta_s_per_byte);
    }
  }
  return 0;
}

bool has_node(const Topology& t, std::string_view name) {
  return std::ranges::any_of(t.nodes, [&](const auto& node) { return node.name == name; });
}

TEST(Names, TheSameNameGivesTheSameTopology) {
  EXPECT_EQ(topology_from_name("2*dgx1"), topology_from_name("2*dgx1"));
}

TEST(Names, AMistakeIsNamedWithItsColumn) {
  EXPECT_THAT(refusal("torus:4xfour"), AllOf(HasSubstr("column 9"), HasSubstr("torus:4x4")));
  EXPECT_THAT(refusal("dgx-a10"), AllOf(HasSubstr("did you mean dgx-a100?"), HasSubstr("mi300x")));
  EXPECT_THAT(refusal("2*rign:8"), AllOf(HasSubstr("column 3"), HasSubstr("did you mean ring")));
  EXPECT_THAT(refusal("ring:8,speed=3"), AllOf(HasSubstr("column 8"), HasSubstr("alpha, rate")));
  EXPECT_THAT(refusal("ring:8,rate=fast"), AllOf(HasSubstr("column 13"), HasSubstr("fast")));
  EXPECT_THAT(refusal("ring:8,rate=-1"), HasSubstr("above 0"));
  EXPECT_THAT(refusal("ring:8,rate=inf"), HasSubstr("above 0"));
  EXPECT_THAT(refusal("ring:8,rate=1,rate=2"), HasSubstr("given twice"));
  EXPECT_THAT(refusal("ring:8 "), HasSubstr("column 7"));
  EXPECT_THAT(refusal("ring"), AllOf(HasSubstr("column 5"), HasSubstr("ring:8")));
  EXPECT_THAT(refusal("ring:0"), HasSubstr("at least 1"));
  EXPECT_THAT(refusal("ring:99999999999999999999"), HasSubstr("larger than 65536"));
  EXPECT_THAT(refusal("torus:4096x4096"), HasSubstr("larger than"));
  EXPECT_THAT(refusal("full-mesh:60000"), HasSubstr("larger than"));
  EXPECT_THAT(refusal("60000*cpu:60000x60000"), HasSubstr("larger than"));
  EXPECT_THAT(refusal("60000*pcie:60000x60000x60000"), HasSubstr("larger than"));
  EXPECT_THAT(refusal("0*dgx1"), HasSubstr("at least one host"));
  EXPECT_THAT(refusal("2*ring:4"), HasSubstr("made of machines"));
  EXPECT_THAT(refusal("dgx1:4"), HasSubstr("takes no shape"));
  EXPECT_THAT(refusal(""), HasSubstr("empty"));
  EXPECT_THAT(refusal("pcie8,gen=9"), HasSubstr("gen=9"));
  EXPECT_THAT(refusal("2*dgx1,rails=maybe"), HasSubstr("yes or no"));
}

TEST(Names, SeveralKindsOfBoxesMeetInOneNetwork) {
  const Topology t = topology_from_name("2*dgx-h100+3*dgx1,nic=6");
  EXPECT_EQ(t.world_size(), 40);
  EXPECT_EQ(test::unsound(t), "");
  EXPECT_TRUE(test::connected(t));
  EXPECT_EQ(t.name, "2*dgx-h100+3*dgx1,nic=6");
  EXPECT_NEAR(rate(t, "host1/nic7", "network"), 50, 1e-9);
  EXPECT_NEAR(rate(t, "host4/nic3", "network"), 6, 1e-9);
  EXPECT_TRUE(has_node(t, "host1/nvswitch"));
  EXPECT_FALSE(has_node(t, "host2/nvswitch"));
}

TEST(Names, OptionsBelongToTheirTermAndThoseOfTheNetworkToTheLast) {
  const Topology t = topology_from_name("dgx-a100,nic=1e+1+dgx1,leaf=1,over=4");
  EXPECT_EQ(t.world_size(), 16);
  EXPECT_NEAR(rate(t, "leaf0", "spine"), 20, 1e-9);    // eight NICs of 10 GB/s, a quarter
  EXPECT_NEAR(rate(t, "leaf1", "spine"), 12.5, 1e-9);  // four of 12.5
  EXPECT_THAT(refusal("dgx1,leaf=1+dgx2"),
              AllOf(HasSubstr("column 6"), HasSubstr("no option leaf")));
}

TEST(Names, GpusShareAsManyNicsAsTheNameSays) {
  const std::map<int, int> nics = {{1, 8}, {2, 4}, {4, 2}, {8, 1}};
  for (const auto& [per_nic, count] : nics) {
    const Topology t = topology_from_name("2*dgx-h100,gpus-per-nic=" + std::to_string(per_nic));
    EXPECT_EQ(
        std::ranges::count_if(t.nodes, [](const auto& node) { return node.kind == NodeKind::nic; }),
        2 * count);
    EXPECT_EQ(t.port_groups.size(), per_nic == 1 ? 0U : 4U * count) << per_nic;
  }
  EXPECT_THAT(refusal("2*dgx1,gpus-per-nic=9"), HasSubstr("8 GPUs"));
}

TEST(Faults, ADeadGpuIsGoneWithItsLinksAndItsRank) {
  const Topology whole = topology_from_name("4*ndv2");
  const Topology t = topology_from_name("4*ndv2,without=host1/gpu3");
  EXPECT_EQ(t.world_size(), 31);
  EXPECT_EQ(test::unsound(t), "");
  EXPECT_TRUE(test::connected(t));
  EXPECT_FALSE(has_node(t, "host1/gpu3"));
  EXPECT_EQ(t.links.size(), whole.links.size() - 10);  // four NVLink neighbours and the NIC
  EXPECT_EQ(t.nodes[t.rank_nodes[11]].name, "host1/gpu4");
  for (const Topology::PortGroup& group : t.port_groups) {
    EXPECT_EQ(group.links.size(), group.name.starts_with("host1/") ? 7U : 8U) << group.name;
  }
}

TEST(Faults, AHostGoesWithAllThatItContains) {
  const Topology t = topology_from_name("3*dgx1,without=host1");
  EXPECT_EQ(t.world_size(), 16);
  EXPECT_FALSE(has_node(t, "host1/nic0"));
  EXPECT_EQ(test::unsound(t), "");
}

TEST(Faults, ACutCableIsCutBothWays) {
  const Topology t = topology_from_name("2*ndv2,cut=host0/gpu1-host0/gpu5");
  EXPECT_EQ(rate(t, "host0/gpu1", "host0/gpu5"), 0);
  EXPECT_EQ(rate(t, "host0/gpu5", "host0/gpu1"), 0);
  EXPECT_GT(rate(t, "host1/gpu1", "host1/gpu5"), 0);
}

TEST(Faults, ASlowNodeIsSlowOnAllItsCablesAndPorts) {
  const Topology t = topology_from_name("4*ndv2,slow=host2/nic0:0.5");
  EXPECT_NEAR(rate(t, "host2/nic0", "network"), 6.25, 1e-9);
  EXPECT_NEAR(rate(t, "host2/gpu0", "host2/nic0"), 6.25, 1e-9);
  EXPECT_NEAR(rate(t, "host1/nic0", "network"), 12.5, 1e-9);
  for (const Topology::PortGroup& group : t.port_groups) {
    EXPECT_NEAR(gb_s(group.beta_s_per_byte), group.name.starts_with("host2/") ? 6.25 : 12.5, 1e-9);
  }
}

TEST(Faults, ACableCanBeSlowInOneDirection) {
  const Topology t = topology_from_name("ring:4,rate=8,slow=node0>node1:0.25,slow=node2-node3:0.5");
  EXPECT_NEAR(rate(t, "node0", "node1"), 2, 1e-9);
  EXPECT_NEAR(rate(t, "node1", "node0"), 8, 1e-9);
  EXPECT_NEAR(rate(t, "node2", "node3"), 4, 1e-9);
  EXPECT_NEAR(rate(t, "node3", "node2"), 4, 1e-9);
}

TEST(Faults, AWrongOneIsRefusedWithItsColumn) {
  EXPECT_THAT(refusal("2*dgx1,without=host1/gpu9"),
              AllOf(HasSubstr("column 16"), HasSubstr("did you mean host1/gpu")));
  EXPECT_THAT(refusal("2*dgx1,cut=host0/gpu0-host1/gpu0"),
              AllOf(HasSubstr("column 12"), HasSubstr("no cable joins")));
  EXPECT_THAT(refusal("2*dgx1,cut=host0/gpu0"), HasSubstr("two ends of a cable"));
  EXPECT_THAT(refusal("2*dgx1,cut=host0/gpu0-host0/gpu"),
              AllOf(HasSubstr("column 23"), HasSubstr("no node is called 'host0/gpu'")));
  EXPECT_THAT(refusal("2*dgx1,slow=host0/nic0:2"), AllOf(HasSubstr("column 24"), HasSubstr("2")));
  EXPECT_THAT(refusal("2*dgx1,slow=host0/nic0:"), HasSubstr("nothing"));
  EXPECT_THAT(refusal("2*dgx1,slow=nic0:0.5"), HasSubstr("no node is called 'nic0'"));
  EXPECT_THAT(refusal("ring:2,without=node0,without=node1"), HasSubstr("no rank is left"));
  EXPECT_THAT(refusal("2*dgx1+"), AllOf(HasSubstr("column 8"), HasSubstr("name of a machine")));
  EXPECT_THAT(refusal("2*dgx1+ring:4"), AllOf(HasSubstr("column 8"), HasSubstr("generator")));
  EXPECT_THAT(refusal("2*dgx1+2*dgx9"), AllOf(HasSubstr("column 10"), HasSubstr("dgx9")));
}

TEST(RandomGraphs, AreConnectedAndTheSameForOneSeed) {
  for (int seed = 1; seed <= 20; ++seed) {
    const std::string options = ",seed=" + std::to_string(seed) + ",spread=5";
    for (const std::string graph : {"random:17,degree=3", "random:24,degree=4", "switch-tree:19"}) {
      const Topology t = topology_from_name(graph + options);
      EXPECT_EQ(t, topology_from_name(graph + options));
      EXPECT_EQ(test::unsound(t), "") << graph << options;
      EXPECT_TRUE(test::connected(t)) << graph << options;
      for (const Topology::Link& link : t.links) {
        EXPECT_GE(gb_s(link.beta_s_per_byte), 1 - 1e-9);
        EXPECT_LE(gb_s(link.beta_s_per_byte), 5 + 1e-9);
      }
    }
  }
  EXPECT_NE(topology_from_name("random:24,seed=1").links,
            topology_from_name("random:24,seed=2").links);
}

// What comes from a device of the host leaves to the network, never to another device.
TEST(Routes, DoNotTurnInANetworkAdapter) {
  for (const std::string name : {"2*z52", "2*ndv2", "2*dgx1,gpus-per-nic=4", "2*mi250"}) {
    const Topology t = topology_from_name(name);
    const Routes routes(t);
    const auto kind = [&](int node) { return t.nodes[node].kind; };
    for (const Route& route : routes.all()) {
      for (std::size_t i = 0; i + 1 < route.path.size(); ++i) {
        const Topology::Link& in = t.links[route.path[i]];
        if (kind(in.dst) != NodeKind::nic) continue;
        const int next = t.links[route.path[i + 1]].dst;
        EXPECT_NE(kind(in.src) == NodeKind::network_switch, kind(next) == NodeKind::network_switch)
            << name << ": " << t.nodes[in.src].name << " to " << t.nodes[next].name;
      }
    }
  }
}

// By way of the network it would be 0.3 us less, and three times the load of the only adapter.
TEST(Routes, StayInTheHostWhereTheyCan) {
  const Topology t = topology_from_name("2*z52");
  const Routes routes(t);
  for (Rank src = 0; src < 8; ++src) {
    for (Rank dst = 0; dst < 8; ++dst) {
      for (const int link : routes.path(src, dst)) {
        EXPECT_NE(t.nodes[t.links[link].dst].kind, NodeKind::nic) << src << " to " << dst;
      }
    }
  }
}

}  // namespace
}  // namespace chorus
