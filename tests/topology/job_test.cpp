#include <gtest/gtest.h>

#include "chorus/error.hpp"
#include "tests/topology/graph.hpp"
#include "topology/sources.hpp"

namespace chorus {
namespace {

using test::gb_s;

TEST(JobTopology, RanksOfOneHostExchangeThroughItsMemory) {
  const Topology t = job_topology({.hosts = 1, .ranks_per_host = 4, .cores_per_host = 2});
  EXPECT_EQ(test::unsound(t), "");
  EXPECT_EQ(t.world_size(), 4);
  // Four ranks on two cores: the receiver waits for a core.
  EXPECT_NEAR(test::alpha_from(t, t.rank_nodes[0])[t.rank_nodes[3]], 2.5e-6, 1e-12);
  EXPECT_NEAR(t.port_groups[0].message_s, 0.09e-6, 1e-12);
  ASSERT_EQ(t.port_groups.size(), 1U);
  EXPECT_EQ(t.port_groups[0].links.size(), 8U);
  EXPECT_NEAR(gb_s(t.port_groups[0].beta_s_per_byte), 16, 1e-9);
  for (const Topology::Node& node : t.nodes) EXPECT_NE(node.kind, NodeKind::nic);
}

TEST(JobTopology, RanksThatHaveACoreEachHandOverAtOnce) {
  const Topology t = job_topology({.hosts = 1, .ranks_per_host = 2, .cores_per_host = 2});
  EXPECT_NEAR(test::alpha_from(t, t.rank_nodes[0])[t.rank_nodes[1]], 0.3e-6, 1e-12);
}

TEST(JobTopology, RanksThatShareNoMemoryUseTheLoopback) {
  const Topology t =
      job_topology({.hosts = 1, .ranks_per_host = 2, .cores_per_host = 2, .shared_memory = false});
  EXPECT_EQ(t.links[0].type, "loopback");
  EXPECT_GT(t.port_groups[0].message_s, 1e-6) << "a system call at each end";
}

TEST(JobTopology, HostsMeetInANetworkAtItsRate) {
  const Topology t =
      job_topology({.hosts = 3, .ranks_per_host = 2, .cores_per_host = 8, .network_gb_s = 12.5});
  EXPECT_EQ(test::unsound(t), "");
  EXPECT_TRUE(test::connected(t));
  EXPECT_EQ(t.world_size(), 6);
  EXPECT_EQ(t.nodes[t.rank_nodes[4]].name, "host2/rank0");
  EXPECT_NEAR(test::leaving(t, "host1"), 12.5, 1e-9);
  EXPECT_NEAR(test::alpha_from(t, t.rank_nodes[0])[t.rank_nodes[5]], 15.3e-6, 1e-12);
}

TEST(JobTopology, RefusesImpossibleShapes) {
  EXPECT_THROW((void)job_topology({.hosts = 0}), InputError);
  EXPECT_THROW((void)job_topology({.ranks_per_host = -1}), InputError);
  EXPECT_THROW((void)job_topology({.hosts = 1 << 20, .ranks_per_host = 1 << 20}), InputError);
  EXPECT_THROW((void)job_topology({.network_gb_s = 0}), InputError);
}

}  // namespace
}  // namespace chorus
