#include "model/price/cost.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "chorus/error.hpp"
#include "schedules.hpp"
#include "topologies.hpp"

namespace chorus {
namespace {

using test::add_link;
using test::add_node;
using test::add_port_group;
using test::gpus;
using test::join;
using test::kMicrosecond;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// All transfers in one step of a broadcast of one chunk.
Schedule one_step(int n, const Step& transfers) {
  return {.name = "by hand",
          .collective = {CollectiveKind::broadcast},
          .world_size = n,
          .num_chunks = 1,
          .steps = {transfers}};
}

TEST(Routes, PreferLeastAlphaThenMostBandwidthThenFewestLinks) {
  Topology topology = gpus(2);
  const int near = add_node(topology, "near", NodeKind::pcie_bridge);
  const int far = add_node(topology, "far", NodeKind::pcie_bridge);
  const int slow_out = add_link(topology, 0, near, 5, 1 * kMicrosecond);
  const int slow_in = add_link(topology, near, 1, 50, 1 * kMicrosecond);
  const int fast_out = add_link(topology, 0, far, 10, 1.5 * kMicrosecond);
  const int fast_in = add_link(topology, far, 1, 10, 0.5 * kMicrosecond);
  EXPECT_THAT(Routes(topology).path(0, 1), ElementsAre(fast_out, fast_in)) << "same alpha, 10 > 5";
  topology.links[0].beta_s_per_byte = test::beta(10);
  const int direct = add_link(topology, 0, 1, 10, 2 * kMicrosecond);
  EXPECT_THAT(Routes(topology).path(0, 1), ElementsAre(direct)) << "same alpha and bandwidth";
  topology.links[0].alpha_s = 0.9 * kMicrosecond;
  EXPECT_THAT(Routes(topology).path(0, 1), ElementsAre(slow_out, slow_in)) << "least alpha";
  EXPECT_DOUBLE_EQ(Routes(topology).alpha_s(0, 1), 1.9 * kMicrosecond);
}

// Host memory passes nothing on by itself, whether or not a rank sits right on it.
TEST(Routes, PassThroughThirdHostsOnlyWhereNothingElseLeads) {
  Topology topology;
  for (const char* name : {"a", "b", "c"}) {
    const int host = add_node(topology, name, NodeKind::host);
    for (const char* part : {"core", "nic0", "nic1"}) {
      const bool is_core = part[0] == 'c';
      const int node = add_node(topology, std::string(name) + "/" + part,
                                is_core ? NodeKind::core : NodeKind::nic);
      topology.nodes.back().parent = host;
      join(topology, host, node, 100, 0);
      if (is_core) topology.rank_nodes.push_back(node);
    }
  }
  const int slow = add_node(topology, "slow", NodeKind::network_switch);
  for (const int nic : {2, 6}) join(topology, nic, slow, 1, 50 * kMicrosecond);  // a and b
  join(topology, 3, 10, 10, 0);                                                  // a and c
  join(topology, 7, 11, 10, 0);                                                  // b and c
  const auto crosses = [&](int link) {
    const Topology::Link& way = topology.links[static_cast<std::size_t>(link)];
    return way.src == 8 || way.dst == 8;
  };
  const std::vector<int> direct = Routes(topology).path(0, 1);
  EXPECT_TRUE(std::ranges::none_of(direct, crosses)) << "not through the memory of c";
  EXPECT_FALSE(RouteFinder(topology).from(0)[1].relayed);
  std::erase_if(topology.links,
                [&](const auto& link) { return link.src == slow || link.dst == slow; });
  EXPECT_TRUE(std::ranges::any_of(Routes(topology).path(0, 1), crosses));
  EXPECT_TRUE(RouteFinder(topology).from(0)[1].relayed);
}

TEST(Routes, PassThroughNodesOfOtherRanksOnlyWhereNothingElseLeads) {
  Topology topology = gpus(3);
  join(topology, 0, 1, 100, 0.1 * kMicrosecond);
  join(topology, 1, 2, 100, 0.1 * kMicrosecond);
  EXPECT_THAT(Routes(topology).path(0, 2), ElementsAre(0, 2)) << "relayed by rank 1";
  const int hub = add_node(topology, "switch0", NodeKind::network_switch);
  join(topology, 0, hub, 1, 50 * kMicrosecond);
  join(topology, 2, hub, 1, 50 * kMicrosecond);
  EXPECT_THAT(Routes(topology).path(0, 2), ElementsAre(4, 7)) << "slow, but disturbs nobody";
  EXPECT_THAT(Routes(topology).path(0, 1), ElementsAre(0));
}

// As transports and NCCL have it. By way of adapters all pairs of two sockets would leave unused
// what joins them, and data for the host comes over the adapters from other hosts all the same.
TEST(Routes, StayInsideAHostHoweverFastItsAdaptersAre) {
  Topology topology = gpus(2);
  const int host = add_node(topology, "host0", NodeKind::host);
  const int hub = add_node(topology, "switch0", NodeKind::network_switch);
  for (const int gpu : {0, 1}) {
    const int nic = add_node(topology, "nic" + std::to_string(gpu), NodeKind::nic);
    topology.nodes[static_cast<std::size_t>(nic)].parent = host;
    topology.nodes[static_cast<std::size_t>(gpu)].parent = host;
    join(topology, gpu, nic, 100, 0.1 * kMicrosecond);
    join(topology, nic, hub, 100, 0.1 * kMicrosecond);
  }
  EXPECT_EQ(Routes(topology).path(0, 1).size(), 4U) << "nothing inside joins them";
  const int inside = add_link(topology, 0, 1, 10, 2 * kMicrosecond);
  EXPECT_THAT(Routes(topology).path(0, 1), ElementsAre(inside));
}

TEST(Routes, SayWhichRanksAreNotConnected) {
  Topology topology = gpus(3);
  add_link(topology, 0, 1, 10);
  const Routes routes(topology);
  EXPECT_TRUE(routes.connected(0, 1));
  EXPECT_FALSE(routes.connected(1, 0)) << "links have one direction";
  EXPECT_FALSE(routes.connected(0, 2));
  EXPECT_TRUE(routes.connected(2, 2));
  EXPECT_THAT(routes.path(0, 2), IsEmpty());
}

TEST(Routes, BetweenRanksOnOneNodeAreEmptyAndFree) {
  Topology topology = gpus(2);
  topology.rank_nodes = {0, 0, 1};
  join(topology, 0, 1, 10);
  const Routes routes(topology);
  EXPECT_TRUE(routes.connected(0, 1));
  EXPECT_THAT(routes.path(0, 1), IsEmpty());
  EXPECT_EQ(routes.alpha_s(0, 1), 0.0);
  EXPECT_THAT(routes.path(1, 2), ElementsAre(0));
}

TEST(ChunkBytes, CountSizesAsPlansDo) {
  const auto bytes_of = [](CollectiveKind kind, int num_chunks) {
    return chunk_bytes(
        {.name = "", .collective = {kind}, .world_size = 4, .num_chunks = num_chunks, .steps = {}},
        4800.0);
  };
  EXPECT_EQ(bytes_of(CollectiveKind::all_reduce, 8), 600.0);
  EXPECT_EQ(bytes_of(CollectiveKind::broadcast, 3), 1600.0);
  EXPECT_EQ(bytes_of(CollectiveKind::reduce, 1), 4800.0);
  EXPECT_EQ(bytes_of(CollectiveKind::all_gather, 8), 600.0) << "two pieces of 1200 bytes";
  EXPECT_EQ(bytes_of(CollectiveKind::reduce_scatter, 4), 1200.0);
  EXPECT_EQ(bytes_of(CollectiveKind::gather, 4), 1200.0);
  EXPECT_EQ(bytes_of(CollectiveKind::scatter, 4), 1200.0);
  EXPECT_EQ(bytes_of(CollectiveKind::all_to_all, 16), 1200.0) << "rank to peer: a quarter of 4800";
  EXPECT_EQ(bytes_of(CollectiveKind::barrier, 1), 0.0);
}

TEST(Cost, OfAnExchangeBetweenTwoRanksIsOneAlphaPlusTheBytesOfOneDirection) {
  Topology topology = gpus(2);
  join(topology, 0, 1, 10, 3 * kMicrosecond);
  const Cost price =
      cost(test::all_pairs(CollectiveKind::all_gather, 2), topology, Routes(topology));
  EXPECT_DOUBLE_EQ(price.alpha_s, 3 * kMicrosecond);
  EXPECT_DOUBLE_EQ(price.beta_s_per_byte, 0.5 * test::beta(10)) << "half of the output crosses";
  EXPECT_DOUBLE_EQ(price.seconds(1e6), 3e-6 + 0.5e6 / 10e9);
}

TEST(Cost, OfARingOnARingIsTheTextbookFormula) {
  for (const int n : {2, 3, 4, 7, 16}) {
    const Topology topology = test::ring(n, 25);
    const Routes routes(topology);
    const Cost gather = cost(test::ring_all_gather(n), topology, routes);
    EXPECT_NEAR(gather.alpha_s, (n - 1) * kMicrosecond, 1e-12);
    EXPECT_NEAR(gather.beta_s_per_byte * 25e9, (n - 1.0) / n, 1e-9);
    const Cost reduce = cost(test::ring_all_reduce(n), topology, routes);
    EXPECT_NEAR(reduce.alpha_s, 2 * (n - 1) * kMicrosecond, 1e-12);
    EXPECT_NEAR(reduce.beta_s_per_byte * 25e9, 2 * (n - 1.0) / n, 1e-9);
  }
}

TEST(Cost, CountsTheMostLoadedLinkOfARoute) {
  // Four ranks behind one switch: an all-to-all in one step puts three blocks on each port.
  const Topology topology = test::star(4, 10);
  const Cost price =
      cost(test::all_pairs(CollectiveKind::all_to_all, 4), topology, Routes(topology));
  EXPECT_DOUBLE_EQ(price.alpha_s, 2 * kMicrosecond) << "up and down";
  EXPECT_DOUBLE_EQ(price.beta_s_per_byte, 3.0 / 4.0 * test::beta(10));
}

TEST(Cost, APortGroupIsOneResource) {
  Topology topology = gpus(3);
  const int left = add_link(topology, 0, 1, 10);
  const int right = add_link(topology, 0, 2, 10);
  const Schedule both = one_step(3, {{0, 1, 0, Action::copy}, {0, 2, 0, Action::copy}});
  EXPECT_DOUBLE_EQ(cost(both, topology, Routes(topology)).beta_s_per_byte, test::beta(10));
  add_port_group(topology, "nic", {left, right}, 10);
  EXPECT_DOUBLE_EQ(cost(both, topology, Routes(topology)).beta_s_per_byte, 2 * test::beta(10));
}

TEST(Cost, ARouteThatCrossesAPortGroupTwiceLoadsItTwice) {
  Topology topology = gpus(2);
  const int memory = add_node(topology, "memory", NodeKind::numa);
  const int in = add_link(topology, 0, memory, 20);
  const int out = add_link(topology, memory, 1, 20);
  add_port_group(topology, "memory bus", {in, out}, 20);
  const Schedule once = one_step(2, {{0, 1, 0, Action::copy}});
  EXPECT_DOUBLE_EQ(cost(once, topology, Routes(topology)).beta_s_per_byte, 2 * test::beta(20));
}

TEST(Cost, OfABarrierIsLatencyAlone) {
  const Topology topology = test::star(2, 10);
  const Schedule barrier = test::all_pairs(CollectiveKind::barrier, 2);
  const Cost price = cost(barrier, topology, Routes(topology));
  EXPECT_DOUBLE_EQ(price.alpha_s, 2 * kMicrosecond);
  EXPECT_EQ(price.beta_s_per_byte, 0.0);
}

TEST(Cost, RefusesTransfersThatNoPathCarries) {
  Topology topology = gpus(3);
  join(topology, 0, 1, 10);
  try {
    (void)cost(test::ring_all_gather(3), topology, Routes(topology));
    FAIL() << "rank 2 is not wired at all";
  } catch (const TopologyError& error) {
    EXPECT_THAT(error.what(), HasSubstr("from rank 1 to rank 2"));
  }
  EXPECT_THROW((void)cost(test::ring_all_gather(2), topology, Routes(topology)), TopologyError)
      << "another number of ranks";
}

TEST(Cost, MessagesTakeTheirShareOfAPortGroupHoweverShort) {
  Topology topology = gpus(3);
  const int a = add_link(topology, 0, 2, 10, 1 * kMicrosecond);
  const int b = add_link(topology, 1, 2, 10, 1 * kMicrosecond);
  topology.port_groups.push_back({.name = "cores", .links = {a, b}, .message_s = 3 * kMicrosecond});
  Schedule gather{.name = "by hand",
                  .collective = {CollectiveKind::gather, 2},
                  .world_size = 3,
                  .num_chunks = 6,
                  .steps = {{{0, 2, 0}, {0, 2, 1}, {1, 2, 2}, {1, 2, 3}}}};
  const Routes routes(topology);
  EXPECT_DOUBLE_EQ(cost(gather, topology, routes).alpha_s, (1 + 2 * 3) * kMicrosecond)
      << "one message from each rank, two chunks long";
  EXPECT_DOUBLE_EQ(simulate(gather, topology, routes, 0).seconds, (1 + 2 * 3) * kMicrosecond)
      << "one after the other, whoever was first";
  gather.steps.push_back({{1, 2, 3}});
  EXPECT_DOUBLE_EQ(simulate(gather, topology, routes, 0).seconds, (1 + 3 * 3) * kMicrosecond)
      << "another step, another message; its latency passes while the first two are served";
  gather.steps = {{{0, 2, 0}, {0, 2, 2}}};
  EXPECT_DOUBLE_EQ(cost(gather, topology, routes).alpha_s, (1 + 2 * 3) * kMicrosecond)
      << "chunks that do not follow each other travel by themselves";
  EXPECT_DOUBLE_EQ(simulate(gather, topology, routes, 0).seconds, (1 + 2 * 3) * kMicrosecond);
}

}  // namespace
}  // namespace chorus
