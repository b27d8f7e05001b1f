#include <gtest/gtest.h>

#include "chorus/error.hpp"
#include "tests/topology/graph.hpp"
#include "topology/discover/sources.hpp"

namespace chorus {
namespace {

using test::gb_s;

constexpr double kNearly = 1e-12;

TEST(JobTopology, RanksOfOneHostExchangeThroughItsMemory) {
  const HostRates rates = assumed_host_rates();
  const Topology t = job_topology({.hosts = 1, .ranks_per_host = 4, .cores_per_host = 2});
  EXPECT_EQ(test::unsound(t), "");
  EXPECT_EQ(t.world_size(), 4);
  // Four ranks on two cores: the receiver waits for a core.
  EXPECT_NEAR(test::alpha_from(t, t.rank_nodes[0])[t.rank_nodes[3]], rates.turn_s, kNearly);
  EXPECT_NEAR(t.port_groups[0].message_s, rates.turn_s / 2, kNearly) << "or rather a turn";
  ASSERT_EQ(t.port_groups.size(), 1U);
  EXPECT_EQ(t.port_groups[0].links.size(), 4U) << "into ranks";
  for (const Topology::Node& node : t.nodes) EXPECT_NE(node.kind, NodeKind::nic);
  for (const Topology::Link& link : t.links) EXPECT_EQ(link.provenance, Provenance::table);
}

TEST(JobTopology, RanksThatHaveACoreEachHandOverAtOnce) {
  const Topology t = job_topology({.hosts = 1, .ranks_per_host = 2, .cores_per_host = 2});
  EXPECT_NEAR(test::alpha_from(t, t.rank_nodes[0])[t.rank_nodes[1]],
              assumed_host_rates().pairs[0].line_s, kNearly);
}

TEST(JobTopology, MemoryIsAsFastAsItWasMeasured) {
  HostRates quick = assumed_host_rates();
  quick.machine = "measured";
  quick.pairs[0].samples = {{1 << 19, 10e-6, 25e-6, 0, 1e-6}, {1 << 20, 20e-6, 50e-6, 0, 2e-6}};
  HostRates kernel = quick;
  for (HostRates::Sample& sample : kernel.pairs[0].samples) sample.kernel_s = sample.fetch_s / 2;
  const Topology t = job_topology(
      {.hosts = 2, .ranks_per_host = 2, .cores_per_host = 2, .rates = {quick, kernel}});
  EXPECT_EQ(test::unsound(t), "");
  const auto link = [&](const char* src, const char* dst) {
    for (const Topology::Link& each : t.links) {
      if (t.nodes[each.src].name == src && t.nodes[each.dst].name == dst) return each;
    }
    return Topology::Link{};
  };
  const Topology::Link out = link("host0/rank0", "host0");
  EXPECT_EQ(out.provenance, Provenance::measured);
  EXPECT_NEAR(out.beta_s_per_byte, 20e-6 / (1 << 20), kNearly * 1e-3) << "into slots";
  EXPECT_NEAR(link("host0", "host0/rank0").beta_s_per_byte, 50e-6 / (1 << 20), kNearly * 1e-3)
      << "out of them";
  EXPECT_NEAR(link("host1", "host1/rank1").beta_s_per_byte, 25e-6 / (1 << 20), kNearly)
      << "by the kernel";
}

TEST(JobTopology, RanksThatShareNoMemoryUseTheLoopback) {
  const Topology t =
      job_topology({.hosts = 1, .ranks_per_host = 2, .cores_per_host = 2, .shared_memory = false});
  EXPECT_EQ(t.links[0].type, "loopback");
  EXPECT_EQ(t.links[0].provenance, Provenance::table);
  EXPECT_GT(t.port_groups[0].message_s, 1e-6) << "a system call at each end";
}

TEST(JobTopology, TheLoopbackIsAsFastAsItWasMeasured) {
  HostRates rates = assumed_host_rates();
  rates.loopback = {.latency_s = 8e-6, .message_s = 3e-6, .byte_s = 0.5e-9};
  const Topology t = job_topology({.hosts = 1,
                                   .ranks_per_host = 2,
                                   .cores_per_host = 2,
                                   .shared_memory = false,
                                   .rates = {rates}});
  EXPECT_EQ(t.links[0].provenance, Provenance::measured);
  EXPECT_NEAR(test::alpha_from(t, t.rank_nodes[0])[t.rank_nodes[1]], 8e-6, kNearly);
  EXPECT_NEAR(gb_s(t.links[0].beta_s_per_byte), 2, 1e-9);
  EXPECT_NEAR(t.port_groups[0].message_s, 1.5e-6, kNearly) << "of two cores";
  EXPECT_NEAR(gb_s(t.port_groups[0].beta_s_per_byte), 4, 1e-9);
}

TEST(JobTopology, HostsMeetInANetworkAtItsRate) {
  const Topology t =
      job_topology({.hosts = 3, .ranks_per_host = 2, .cores_per_host = 8, .network_gb_s = 12.5});
  EXPECT_EQ(test::unsound(t), "");
  EXPECT_TRUE(test::connected(t));
  EXPECT_EQ(t.world_size(), 6);
  EXPECT_EQ(t.nodes[t.rank_nodes[4]].name, "host2/rank0");
  EXPECT_NEAR(test::leaving(t, "host1"), 12.5, 1e-9);
  EXPECT_NEAR(test::alpha_from(t, t.rank_nodes[0])[t.rank_nodes[5]],
              15e-6 + assumed_host_rates().pairs[0].line_s, kNearly);
}

TEST(JobTopology, RefusesImpossibleShapes) {
  EXPECT_THROW((void)job_topology({.hosts = 0}), InputError);
  EXPECT_THROW((void)job_topology({.ranks_per_host = -1}), InputError);
  EXPECT_THROW((void)job_topology({.hosts = 1 << 20, .ranks_per_host = 1 << 20}), InputError);
  EXPECT_THROW((void)job_topology({.network_gb_s = 0}), InputError);
}

}  // namespace
}  // namespace chorus
