#include "runtime/probing/pacing.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "base/index.hpp"
#include "model/json/json.hpp"
#include "topology/discover/sources.hpp"
#include "world.hpp"

namespace chorus {
namespace {

using ::testing::DoubleNear;
using ::testing::Pointwise;

Topology measured(const std::string& name) {
  Topology topology = topology_from_name(name);
  for (Topology::Link& link : topology.links) link.provenance = Provenance::measured;
  return topology;
}

TEST(Paces, AreThoseOfAMeasuredTrunkTowardsWhoIsBehindIt) {
  const Topology topology = measured("pairs");  // 2 and 2 hosts at 0.25 GB/s, a trunk of 0.025
  constexpr double kPace = 0.025e9;
  EXPECT_THAT(paces(topology, 0), Pointwise(DoubleNear(1), {0.0, 0.0, kPace, kPace}));
  EXPECT_THAT(paces(topology, 3), Pointwise(DoubleNear(1), {kPace, kPace, 0.0, 0.0}));
}

TEST(Paces, AreOfTheSlowestTrunkOnTheWay) {
  Topology topology = measured("lan:1x1x1,trunk=0.02");
  for (Topology::Link& link : topology.links) {
    const bool second = topology.nodes[static_cast<std::size_t>(link.dst)].name == "switch2" &&
                        topology.nodes[static_cast<std::size_t>(link.src)].name == "switch1";
    if (second) link.beta_s_per_byte = 1e-8;  // faster: 0.1 GB/s
  }
  const std::vector<double> found = paces(topology, 0);
  EXPECT_NEAR(found[1], 0.02e9, 1);
  EXPECT_NEAR(found[2], 0.02e9, 1);
  EXPECT_NEAR(paces(topology, 1)[2], 0.1e9, 1);
}

TEST(Paces, NobodyIsHeldBackByWhatIsOnlySaid) {
  EXPECT_EQ(paces(topology_from_name("pairs"), 0), std::vector<double>(4, 0));
}

// A slow receiver's queue lies in the switch before it: less than it takes lets it drain.
TEST(Paces, AreBelowWhatASlowReceiversCableTakes) {
  const std::vector<double> found = paces(measured("slow"), 0);  // rank 3's of 0.025 GB/s
  EXPECT_EQ(found[1], 0);
  EXPECT_GT(found[3], 0.95 * 0.025e9);
  EXPECT_LT(found[3], 0.025e9);
}

TEST(Paces, NorByTheHostsOwnCables) {
  EXPECT_EQ(paces(measured("slow"), 3), std::vector<double>(4, 0)) << "its own kernel's queue";
  EXPECT_EQ(paces(measured("homo"), 1), std::vector<double>(4, 0));
  EXPECT_EQ(paces(measured("lan:2x2,trunk=0.22"), 0), std::vector<double>(4, 0))
      << "an error of measurement";
}

TEST(Paces, HoldForTheLinksOfACommunicator) {
  Topology topology = measured("lan:2x2,rate=0.5,trunk=0.01");
  const std::string path = ::testing::TempDir() + "paced_topology.json";
  std::ofstream(path) << to_json(topology);
  testing::World world = testing::threads(4, "tcp");
  world.options.topology_file = path;
  world.options.synthesis_ms = 0;  // all calls over the same connections, none of them new
  world.options.slot_bytes = Options{}.slot_bytes;  // small messages are not held back
  constexpr std::size_t kFloats = 128 << 10;        // of a block: 512 KiB
  std::vector<double> seconds(4, 0);
  testing::expect_all_well(testing::run_world(world, [&](Communicator& ranks) {
    const std::vector<float> input(kFloats, static_cast<float>(ranks.rank()));
    std::vector<float> output(4 * kFloats);
    // The first ten packets of a connection leave at once, here 64 KiB each.
    for (int call = 0; call < 4; ++call) {
      ranks.barrier();
      const auto start = std::chrono::steady_clock::now();
      ranks.all_gather(std::span<const float>(input), std::span(output));
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
      seconds[at(ranks.rank())] = taken.count();
    }
    for (std::size_t i = 0; i < output.size(); ++i) {
      const std::size_t of_rank = i / kFloats;
      ASSERT_EQ(output[i], static_cast<float>(of_rank));
    }
  }));
  // Two blocks cross the trunk: 105 ms for one pair of ranks at its rate, 26 for all four at once.
  // As fast as loopback can: 2 ms.
  for (const double taken : seconds) EXPECT_GE(taken, 0.02);
}

}  // namespace
}  // namespace chorus
