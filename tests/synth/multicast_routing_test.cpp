#include "synth/multicast_routing.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "chorus/error.hpp"
#include "model/price/cost.hpp"
#include "synth/network.hpp"
#include "topologies.hpp"
#include "topology/discover/sources.hpp"

namespace chorus::synth {
namespace {

using ::testing::HasSubstr;

/// Every rank sends its `pieces` chunks around a ring of n.
MulticastRouting around(int n, int pieces) {
  MulticastRouting multicast{{CollectiveKind::all_gather}, n * pieces, {}};
  for (ChunkId chunk = 0; chunk < n * pieces; ++chunk) {
    for (int hop = 0; hop + 1 < n; ++hop) {
      const Rank src = (chunk / pieces + hop) % n;
      multicast.hops.push_back({src, (src + 1) % n, chunk});
    }
  }
  return multicast;
}

TEST(Network, HasAnEdgeWhereNoThirdRankIsPassed) {
  const Network ring(test::ring(5, 1));
  EXPECT_EQ(ring.edges().size(), 10U);
  EXPECT_TRUE(ring.edge(0, 1).has_value());
  EXPECT_TRUE(ring.edge(0, 4).has_value());
  EXPECT_FALSE(ring.edge(0, 2).has_value());
  const Network star(topology_from_name("switch:6"));
  EXPECT_EQ(star.edges().size(), 30U);
  EXPECT_EQ(star.resources().size(), 12U);
  EXPECT_EQ(star.out(3).size(), 5U);
}

TEST(Network, ReversedTurnsEveryEdgeAndKeepsItsResources) {
  Topology topology = test::gpus(2);
  test::add_link(topology, 0, 1, 5);
  const Network forward(topology);
  const Network reversed(topology, Direction::reversed);
  ASSERT_TRUE(forward.edge(0, 1) && reversed.edge(1, 0));
  EXPECT_FALSE(reversed.edge(0, 1));
  EXPECT_EQ(reversed.edges()[0].beta_s_per_byte, forward.edges()[0].beta_s_per_byte);
}

TEST(Network, NamesTheRanksThatNoPathReaches) {
  Topology topology = test::gpus(4);
  test::join(topology, 0, 1, 1);
  test::join(topology, 2, 3, 1);
  try {
    require_connected(topology, Network(topology));
    FAIL() << "accepted";
  } catch (const TopologyError& error) {
    EXPECT_THAT(error.what(), HasSubstr("to ranks 2, 3 from the other 2 ranks"));
  }
}

TEST(InOrder, ARingOfPiecesTakesWhatItsLinksNeed) {
  const Topology ring = test::ring(6, 1);
  const Network network(ring);
  const double size_bytes = 6e6;
  for (const int pieces : {1, 4}) {
    const MulticastRouting multicast = around(6, pieces);
    const Schedule schedule =
        in_order("ring", network, multicast, size_bytes / multicast.num_chunks);
    EXPECT_EQ(first_fault(schedule), std::nullopt);
    EXPECT_EQ(schedule.steps.size(), pieces == 1 ? 5U : schedule.steps.size());
    const double seconds = simulate(schedule, ring, Routes(ring), size_bytes).seconds;
    EXPECT_NEAR(seconds, 5e-3, 0.02e-3) << pieces << " pieces";
  }
}

TEST(InOrder, PiecesOfABroadcastFollowEachOtherDownAChain) {
  Topology chain = test::gpus(5);
  for (int i = 0; i < 4; ++i) test::join(chain, i, i + 1, 1);
  constexpr int kPieces = 20;
  MulticastRouting multicast{{CollectiveKind::broadcast}, kPieces, {}};
  for (ChunkId chunk = 0; chunk < kPieces; ++chunk) {
    for (Rank rank = 0; rank < 4; ++rank) multicast.hops.push_back({rank, rank + 1, chunk});
  }
  const Schedule schedule = in_order("chain", Network(chain), multicast, 1e6);
  EXPECT_EQ(first_fault(schedule), std::nullopt);
  EXPECT_NEAR(simulate(schedule, chain, Routes(chain), 20e6).seconds, 23e-3, 0.01e-3);
}

TEST(InOrder, TheMirrorOfAGatherReducesAndBothTogetherAllReduce) {
  const Topology ring = test::ring(5, 1);
  const Schedule gather = in_order("ring", Network(ring), around(5, 2), 1e5);
  const Schedule scatter = mirrored(gather);
  EXPECT_EQ(first_fault(scatter), std::nullopt);
  EXPECT_EQ(scatter.collective.kind, CollectiveKind::reduce_scatter);
  EXPECT_EQ(first_fault(all_reduce_of(scatter, gather)), std::nullopt);
}

}  // namespace
}  // namespace chorus::synth
