#include "model/bounds/bounds.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <cmath>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "chorus/error.hpp"
#include "model/bounds/exchange.hpp"
#include "model/bounds/network.hpp"
#include "model/schedule/contract.hpp"
#include "topologies.hpp"
#include "topology/discover/sources.hpp"

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

constexpr CollectiveKind kAllKinds[] = {
    CollectiveKind::all_reduce, CollectiveKind::all_gather, CollectiveKind::reduce_scatter,
    CollectiveKind::all_to_all, CollectiveKind::broadcast,  CollectiveKind::reduce,
    CollectiveKind::gather,     CollectiveKind::scatter,    CollectiveKind::barrier};

double algbw(const Topology& topology, CollectiveKind kind, Rank root = 0) {
  return lower_bound(topology, {kind, root}).algbw_gb_s();
}

/// `value` printed with as many decimals as `expected` has.
std::string like(std::string_view expected, double value) {
  const std::size_t point = expected.find('.');
  const int decimals =
      point == std::string_view::npos ? 0 : static_cast<int>(expected.size() - point - 1);
  return fmt::format("{:.{}f}", value, decimals);
}

/// A machine or network and what is known of it; algbw in GB/s as printed in the literature or
/// computed by independent programs (docs/bounds.md).
struct Known {
  const char* name;
  int ranks;
  int diameter;
  const char* all_gather;
  const char* all_reduce;  // reduce-scatter and all-gather
  const char* all_to_all;
};

constexpr Known kKnown[] = {
    {"dgx1", 8, 2, "171.4", "85.7", "75.0"},         {"mi250x", 8, 2, "333.3", "166.7", "150"},
    {"mi250", 16, 5, "342.9", "171.4", "75"},        {"2*mi250", 32, 1, "354.1", "177.1", "32"},
    {"mi300x", 8, 1, "512", "256", "512"},           {"dgx2", 16, 1, "160", "80", "160"},
    {"dgx-a100", 8, 1, "342.9", "171.4", "342.9"},   {"2*dgx-a100", 16, 1, "346.7", "173.3", "50"},
    {"dgx-h100", 8, 1, "514.3", "257.1", "514.3"},   {"2*dgx-h100", 16, 1, "533.3", "266.7", "100"},
    {"4*dgx-h100", 32, 1, "516.1", "258.1", "66.7"}, {"nvl72", 72, 1, "912.7", "456.3", "912.7"},
    {"2*ndv2", 16, 1, "25.0", "12.5", "3.125"},      {"ring:8", 8, 4, "2.29", "1.14", "1"},
    {"torus:4x4", 16, 4, "4.27", "2.13", "2"},       {"torus:8x8", 64, 8, "4.06", "2.03", "1"},
    {"mesh:4x4", 16, 6, "2.13", "1.07", "1"},        {"hypercube:4", 16, 4, "4.27", "2.13", "2"},
};

class KnownBounds : public ::testing::TestWithParam<Known> {};

TEST_P(KnownBounds, AreReproduced) {
  const Known& known = GetParam();
  const Topology topology = topology_from_name(known.name);
  ASSERT_EQ(topology.world_size(), known.ranks);
  const Bound gather = lower_bound(topology, {CollectiveKind::all_gather});
  EXPECT_EQ(like(known.all_gather, gather.algbw_gb_s()), known.all_gather) << gather.cut;
  EXPECT_TRUE(gather.tight);
  EXPECT_EQ(gather.steps, known.diameter);
  const Bound scatter = lower_bound(topology, {CollectiveKind::reduce_scatter});
  EXPECT_EQ(like(known.all_gather, scatter.algbw_gb_s()), known.all_gather) << scatter.cut;
  const Bound reduce = lower_bound(topology, {CollectiveKind::all_reduce});
  EXPECT_EQ(like(known.all_reduce, 1e-9 / reduce.reduce_scatter_all_gather), known.all_reduce);
  // On meshes nobody knows what lies between; everywhere else the two figures meet.
  EXPECT_EQ(reduce.tight, std::string_view(known.name) != "mesh:4x4") << reduce.cut;
  EXPECT_LE(reduce.seconds_per_byte, reduce.reduce_scatter_all_gather * (1 + 1e-6));
  const Bound exchange = lower_bound(topology, {CollectiveKind::all_to_all});
  EXPECT_EQ(like(known.all_to_all, exchange.algbw_gb_s()), known.all_to_all) << exchange.cut;
  EXPECT_TRUE(exchange.tight);
}

INSTANTIATE_TEST_SUITE_P(Machines, KnownBounds, ::testing::ValuesIn(kKnown),
                         [](const ::testing::TestParamInfo<Known>& known) {
                           std::string name = known.param.name;
                           for (char& c : name) {
                             if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
                           }
                           return name;
                         });

TEST(Bounds, OfDgx1AreThoseOfTheScclPaper) {
  // 7/6 rounds of 25 GB/s per all-gather, 8/3 per all-to-all; a broadcast fills all six links.
  const Topology dgx1 = topology_from_name("dgx1");
  EXPECT_NEAR(algbw(dgx1, CollectiveKind::all_gather), 8 * 25 * 6.0 / 7, 1e-9);
  EXPECT_NEAR(algbw(dgx1, CollectiveKind::all_to_all), 8 * 25 * 3.0 / 8, 1e-6);
  for (Rank root = 0; root < 8; ++root) {
    EXPECT_NEAR(algbw(dgx1, CollectiveKind::broadcast, root), 150, 1e-9);
    EXPECT_NEAR(algbw(dgx1, CollectiveKind::reduce, root), 150, 1e-9);
    EXPECT_NEAR(algbw(dgx1, CollectiveKind::scatter, root), 150 * 8.0 / 7, 1e-6);
    EXPECT_NEAR(algbw(dgx1, CollectiveKind::gather, root), 150 * 8.0 / 7, 1e-6);
  }
  const Bound reduce = lower_bound(dgx1, {CollectiveKind::all_reduce});
  EXPECT_EQ(reduce.method, "volume");
  EXPECT_TRUE(reduce.tight) << "reduce-scatter and all-gather reach it";
  EXPECT_NEAR(reduce.algbw_gb_s(), 150 * 8.0 / 14, 1e-9);
}

TEST(Bounds, OfAllReduceOnAMeshLeaveRoomAboveReduceScatterAllGather) {
  const Bound bound = lower_bound(topology_from_name("mesh:3x3"), {CollectiveKind::all_reduce});
  EXPECT_NEAR(bound.seconds_per_byte * 1e9, 2.0 / 3, 1e-9) << "16 crossings of 24 links";
  EXPECT_NEAR(bound.reduce_scatter_all_gather * 1e9, 8.0 / 9, 1e-9);
  EXPECT_EQ(bound.method, "volume");
  EXPECT_FALSE(bound.tight);
}

TEST(Bounds, OfAllReduceAreSetByTheLeastCutWhereTwoIslandsMeet) {
  // Two fast triangles and one slow cable between them.
  Topology topology = gpus(6);
  for (const int first : {0, 3}) {
    for (int i = 0; i < 3; ++i) join(topology, first + i, first + (i + 1) % 3, 100);
  }
  join(topology, 2, 3, 1, kMicrosecond, "ethernet");
  const Bound bound = lower_bound(topology, {CollectiveKind::all_reduce});
  EXPECT_EQ(bound.method, "min cut");
  EXPECT_NEAR(bound.algbw_gb_s(), 1, 1e-9);
  EXPECT_THAT(bound.cut_ranks, ElementsAre(0, 1, 2));
  EXPECT_THAT(bound.cut_links, ElementsAre(12));
  EXPECT_EQ(bound.cut, "into gpu3, gpu4 and gpu5: 1 ethernet, 1 GB/s");
}

TEST(Bounds, OfAllReduceCountWhatLeavesEveryMachineOfACluster) {
  // Ranks alone would allow 254 GB/s; 14 messages of every byte between eight boxes of 400 GB/s
  // not.
  const Topology boxes = topology_from_name("8*dgx-h100");
  const Bound bound = lower_bound(boxes, {CollectiveKind::all_reduce});
  EXPECT_NEAR(bound.algbw_gb_s(), 8 * 400.0 / 14, 1e-6);
  EXPECT_TRUE(bound.tight);
  EXPECT_EQ(bound.method, "volume");
  EXPECT_THAT(bound.cut, HasSubstr("out of all 8 parts together: 64 infiniband, 3200 GB/s"));
}

TEST(Bounds, OfAllReduceFindThePartsThatHoldItUp) {
  // All cores apart and the eight GPUs of a box together, which no containment tells: 34 messages
  // leave and 34 enter 18 parts. A core's pass its host's memory both times, 64 GB/s; the rest goes
  // over the boxes' adapters, 12.5 GB/s each way: (2·64 + 4·12.5) / 68.
  const Bound bound =
      lower_bound(topology_from_name("2*cpu:2x4,nic=50+2*pcie8"), {CollectiveKind::all_reduce});
  EXPECT_NEAR(bound.algbw_gb_s(), 178.0 / 68, 1e-4);
  EXPECT_EQ(bound.method, "volume and LP");
  EXPECT_THAT(bound.cut, HasSubstr("'host0/copying'"));
}

TEST(Bounds, OfAllReduceTakeEveryMachineApart) {
  // Eight cores and the rest are nine parts: 16 messages leave and 16 enter. All pass the host's
  // memory, 64 GB/s, but those of the rest, which come and go over its adapter, 12.5 GB/s each way.
  for (const char* name : {"1*mi300x+1*cpu:2x4", "3*mi300x+1*cpu:2x4"}) {
    const Bound bound = lower_bound(topology_from_name(name), {CollectiveKind::all_reduce});
    EXPECT_NEAR(bound.algbw_gb_s(), (64 + 2 * 12.5) / 32, 1e-4) << name;
  }
}

// Hosts of many cores behind one adapter: hundreds of cuts are as good as each other, and those
// that take off less than a thousandth together are left out.
TEST(Bounds, OfAllReduceComeToAnEndWhereManyCutsAreAlike) {
  for (const auto& [name, gb_s] : {std::pair("3*cpu:1x22,nic=1", 0.75), {"2*cpu:2x16,nic=2", 2}}) {
    const Bound bound = lower_bound(topology_from_name(name), {CollectiveKind::all_reduce, 0});
    EXPECT_NEAR(1e-9 / bound.seconds_per_byte, gb_s, 0.01 * gb_s) << name;
  }
}

TEST(Bounds, OfAllReduceCountWhatLeavesEverySwitch) {
  // Four leaves of two ranks, uplinks of 2/3 GB/s and one of three quarters of that: six messages
  // leave them together.
  const Bound bound = lower_bound(topology_from_name("fat-tree:4x2,over=3,slow=switch1-core:0.75"),
                                  {CollectiveKind::all_reduce});
  EXPECT_NEAR(bound.seconds_per_byte * 1e9, 6 / 2.5, 1e-9) << bound.cut;
  EXPECT_EQ(bound.method, "volume");
}

TEST(Bounds, OfAllReduceTellWhatSwitchesThatReduceCouldDo) {
  const Bound box = lower_bound(topology_from_name("dgx-h100"), {CollectiveKind::all_reduce});
  EXPECT_NEAR(1e-9 / box.switches_reducing, 450, 1e-6) << "every GPU sends and receives it once";
  EXPECT_NEAR(box.algbw_gb_s(), 450.0 * 8 / 14, 1e-6);
  const Bound boxes = lower_bound(topology_from_name("8*dgx-h100"), {CollectiveKind::all_reduce});
  EXPECT_NEAR(1e-9 / boxes.switches_reducing, 400, 1e-6) << "out of a box by its NICs";
  EXPECT_EQ(lower_bound(topology_from_name("dgx1"), {CollectiveKind::all_reduce}).switches_reducing,
            0);
}

TEST(Bounds, OfAHundredAndMoreRanksAreFoundInSeconds) {
  const Topology racks = topology_from_name("2*nvl72");
  const Bound exchange = lower_bound(racks, {CollectiveKind::all_to_all});
  EXPECT_NEAR(exchange.algbw_gb_s(), 100, 1e-6) << "half of everything over 72 NICs of 50 GB/s";
  EXPECT_TRUE(exchange.tight);
  EXPECT_NEAR(algbw(racks, CollectiveKind::all_gather), 950 * 144 / 143.0, 1e-6);
}

TEST(Bounds, NameTheirLimitingCut) {
  // A chain 0 - 1 - 2 whose end is slow into gpu2 and slower out of it.
  Topology topology = gpus(3);
  join(topology, 0, 1, 100);
  const int in = add_link(topology, 1, 2, 10);
  const int out = add_link(topology, 2, 1, 4);
  const Bound gather = lower_bound(topology, {CollectiveKind::all_gather});
  EXPECT_NEAR(gather.algbw_gb_s(), 12, 1e-9) << "a third of the output comes out of gpu2 at 4 GB/s";
  EXPECT_THAT(gather.cut_ranks, ElementsAre(2));
  EXPECT_THAT(gather.cut_links, ElementsAre(out));
  EXPECT_EQ(gather.cut, "out of gpu2: 1 nvlink, 4 GB/s");
  const Bound scatter = lower_bound(topology, {CollectiveKind::reduce_scatter});
  EXPECT_NEAR(scatter.algbw_gb_s(), 6, 1e-9) << "gpu2 gives away two thirds of the input";
  EXPECT_THAT(scatter.cut_ranks, ElementsAre(2));
  EXPECT_THAT(scatter.cut_links, ElementsAre(out));
  EXPECT_EQ(scatter.cut, "out of gpu2: 1 nvlink, 4 GB/s");
  const Bound broadcast = lower_bound(topology, {CollectiveKind::broadcast, 0});
  EXPECT_NEAR(broadcast.algbw_gb_s(), 10, 1e-9);
  EXPECT_THAT(broadcast.cut_ranks, ElementsAre(0, 1));
  EXPECT_THAT(broadcast.cut_links, ElementsAre(in));
  const Bound reduce = lower_bound(topology, {CollectiveKind::reduce, 0});
  EXPECT_NEAR(reduce.algbw_gb_s(), 4, 1e-9);
  EXPECT_THAT(reduce.cut_links, ElementsAre(out));
  EXPECT_THAT(reduce.cut_ranks, ElementsAre(2));
  const Bound from = lower_bound(topology, {CollectiveKind::scatter, 0});
  EXPECT_NEAR(from.algbw_gb_s(), 30, 1e-6) << "a third of the input at 10 GB/s";
  EXPECT_THAT(from.cut_ranks, ElementsAre(0, 1));
  const Bound to = lower_bound(topology, {CollectiveKind::gather, 0});
  EXPECT_NEAR(to.algbw_gb_s(), 12, 1e-6);
  EXPECT_THAT(to.cut_ranks, ElementsAre(2));
  EXPECT_THAT(to.cut_links, ElementsAre(out));
  const Bound exchange = lower_bound(topology, {CollectiveKind::all_to_all});
  EXPECT_NEAR(exchange.algbw_gb_s(), 6, 1e-6) << "two blocks of a third each at 4 GB/s";
  EXPECT_THAT(exchange.cut_links, ElementsAre(out));
}

TEST(Bounds, APortGroupCarriesEachCopyOfABroadcast) {
  Topology topology = gpus(3);
  const int left = add_link(topology, 0, 1, 10);
  const int right = add_link(topology, 0, 2, 10);
  EXPECT_NEAR(algbw(topology, CollectiveKind::broadcast), 10, 1e-9);
  add_port_group(topology, "nic", {left, right}, 10);
  const Bound bound = lower_bound(topology, {CollectiveKind::broadcast, 0});
  EXPECT_NEAR(bound.algbw_gb_s(), 5, 1e-6) << "both copies through one port";
  EXPECT_THAT(bound.cut_port_groups, ElementsAre(0));
  EXPECT_THAT(bound.cut, HasSubstr("port group 'nic'"));
  EXPECT_NEAR(algbw(topology, CollectiveKind::scatter), 15, 1e-6) << "two thirds of the input";
}

TEST(Bounds, ASwitchCopiesNothing) {
  // The switch can hand on 10 GB/s to each of two ranks but takes in only 10.
  Topology topology = gpus(3);
  const int hub = add_node(topology, "switch0", NodeKind::network_switch);
  add_link(topology, 0, hub, 10);
  add_link(topology, hub, 1, 10);
  add_link(topology, hub, 2, 10);
  EXPECT_NEAR(algbw(topology, CollectiveKind::broadcast), 5, 1e-6);
  add_link(topology, 1, hub, 10);  // now rank 1 can pass it on
  EXPECT_NEAR(algbw(topology, CollectiveKind::broadcast), 10, 1e-6);
}

TEST(Bounds, AMemoryBusCountsAllThatCrossesIt) {
  for (const int n : {2, 3, 5, 8}) {
    Topology topology = gpus(n);
    std::vector<int> all;
    for (int a = 0; a < n; ++a) {
      for (int b = 0; b < n; ++b) {
        if (a != b) all.push_back(add_link(topology, a, b, 100));
      }
    }
    add_port_group(topology, "memory bus", all, 20);
    const double others = n - 1;
    EXPECT_NEAR(algbw(topology, CollectiveKind::all_gather), 20 / others, 1e-5);
    EXPECT_NEAR(algbw(topology, CollectiveKind::reduce_scatter), 20 / others, 1e-5);
    EXPECT_NEAR(algbw(topology, CollectiveKind::broadcast), 20 / others, 1e-5);
    EXPECT_NEAR(algbw(topology, CollectiveKind::scatter), 20 * n / others, 1e-5);
    EXPECT_NEAR(algbw(topology, CollectiveKind::all_to_all), 20 / others, 1e-5);
    const Bound reduce = lower_bound(topology, {CollectiveKind::all_reduce});
    EXPECT_NEAR(reduce.algbw_gb_s(), 20 / (2 * others), 1e-5) << reduce.method;
    EXPECT_TRUE(reduce.tight) << reduce.cut;
    EXPECT_THAT(reduce.cut, HasSubstr("memory bus"));
  }
}

TEST(Bounds, LatencyIsTheLongestOfTheShortestPaths) {
  Topology topology = gpus(4);  // a chain with alphas 1, 2 and 3 µs
  for (int r = 0; r < 3; ++r) join(topology, r, r + 1, 10, (r + 1) * kMicrosecond);
  for (const CollectiveKind kind : {CollectiveKind::all_gather, CollectiveKind::all_reduce,
                                    CollectiveKind::all_to_all, CollectiveKind::barrier}) {
    const Bound bound = lower_bound(topology, {kind});
    EXPECT_NEAR(bound.latency_s, 6e-6, 1e-15) << name_of(kind);
    EXPECT_EQ(bound.steps, 3) << name_of(kind);
  }
  for (const CollectiveKind kind : {CollectiveKind::broadcast, CollectiveKind::reduce,
                                    CollectiveKind::gather, CollectiveKind::scatter}) {
    const Bound bound = lower_bound(topology, {kind, 1});
    EXPECT_NEAR(bound.latency_s, 5e-6, 1e-15) << name_of(kind);
    EXPECT_EQ(bound.steps, 2) << name_of(kind);
  }
  const Bound barrier = lower_bound(topology, {CollectiveKind::barrier});
  EXPECT_EQ(barrier.seconds_per_byte, 0);
  EXPECT_EQ(barrier.method, "latency only");
}

TEST(Bounds, PassingASwitchIsNoStepOfItsOwn) {
  EXPECT_EQ(lower_bound(test::star(5, 10), {CollectiveKind::all_gather}).steps, 1);
  EXPECT_EQ(lower_bound(test::star(5, 10), {CollectiveKind::all_gather}).latency_s,
            2 * kMicrosecond);
}

TEST(Bounds, OneRankOrOneNodeNeedsNoBandwidth) {
  for (const CollectiveKind kind : kAllKinds) {
    const Bound alone = lower_bound(gpus(1), {kind});
    EXPECT_TRUE(std::isinf(alone.algbw_gb_s())) << name_of(kind);
    EXPECT_EQ(alone.steps, 0) << name_of(kind);
    Topology together = gpus(1);
    together.rank_nodes = {0, 0, 0};
    const Bound bound = lower_bound(together, {kind});
    EXPECT_TRUE(std::isinf(bound.algbw_gb_s())) << name_of(kind);
    EXPECT_EQ(bound.steps, 1) << name_of(kind);
  }
}

TEST(Bounds, RanksOnOneNodeShareItsLinks) {
  Topology topology = gpus(2);
  topology.rank_nodes = {0, 0, 0, 1};
  join(topology, 0, 1, 12);
  // Three of four shares cross from left to right.
  EXPECT_NEAR(algbw(topology, CollectiveKind::all_gather), 16, 1e-9);
  EXPECT_NEAR(algbw(topology, CollectiveKind::all_to_all), 16, 1e-6);
  EXPECT_NEAR(algbw(topology, CollectiveKind::all_reduce), 12, 1e-9) << "combined before crossing";
  EXPECT_NEAR(algbw(topology, CollectiveKind::scatter, 3), 16, 1e-6);
  EXPECT_NEAR(algbw(topology, CollectiveKind::scatter, 0), 48, 1e-6) << "one share crosses";
}

TEST(Bounds, LinksWithoutALimitLimitNothing) {
  Topology topology = test::ring(3, 10);
  for (Topology::Link& link : topology.links) link.beta_s_per_byte = 0;
  for (const CollectiveKind kind : kAllKinds) {
    const Bound bound = lower_bound(topology, {kind});
    EXPECT_TRUE(std::isinf(bound.algbw_gb_s())) << name_of(kind) << " " << bound.algbw_gb_s();
  }
  topology.links[0].beta_s_per_byte = test::beta(10);
  const Bound around = lower_bound(topology, {CollectiveKind::all_gather});
  EXPECT_TRUE(std::isinf(around.algbw_gb_s())) << "the other way round";
  EXPECT_EQ(around.seconds(1e12), around.latency_s);
}

// 2 nodes of 256 ranks each exchange 65,536 blocks over one link.
TEST(Bounds, LinksWithoutALimitLimitNoCollectiveHoweverLarge) {
  Topology topology = gpus(2);
  join(topology, 0, 1, 10);
  for (Topology::Link& link : topology.links) link.beta_s_per_byte = 0;
  topology.rank_nodes.insert(topology.rank_nodes.end(), 255, topology.rank_nodes[0]);
  topology.rank_nodes.insert(topology.rank_nodes.end(), 255, topology.rank_nodes[1]);
  for (const CollectiveKind kind : kAllKinds) {
    const Bound bound = lower_bound(topology, {kind});
    EXPECT_EQ(bound.seconds(1e12), bound.latency_s) << name_of(kind);
  }
}

TEST(Bounds, NameTwoRanksThatAreNotConnected) {
  Topology topology = gpus(3);
  join(topology, 0, 1, 10);
  add_link(topology, 1, 2, 10);
  for (const CollectiveKind kind : kAllKinds) {
    if (kind == CollectiveKind::broadcast || kind == CollectiveKind::scatter) {
      EXPECT_NO_THROW((void)lower_bound(topology, {kind, 0})) << "all can be reached from rank 0";
      continue;
    }
    try {
      (void)lower_bound(topology, {kind, 0});
      FAIL() << name_of(kind) << ": nothing leaves rank 2";
    } catch (const TopologyError& error) {
      EXPECT_THAT(error.what(), HasSubstr("from rank 2 (gpu2) to rank 0 (gpu0)")) << name_of(kind);
    }
  }
  EXPECT_THROW((void)lower_bound(topology, {CollectiveKind::broadcast, 3}), InputError);
  EXPECT_THROW((void)lower_bound(topology, {CollectiveKind::gather, -1}), InputError);
}

// --- Against the definitions, on random wirings ------------------------------------------------

/// A strongly connected wiring of `n` ranks and `switches` switches with few different rates, so
/// that many cuts nearly tie.
Topology random_wiring(int n, int switches, std::mt19937& random) {
  Topology topology = gpus(n);
  for (int i = 0; i < switches; ++i) {
    add_node(topology, "switch" + std::to_string(i), NodeKind::network_switch);
  }
  const int nodes = n + switches;
  const auto pick = [&](int below) { return static_cast<int>(random() % below); };
  std::vector<int> order(static_cast<std::size_t>(nodes));
  for (int i = 0; i < nodes; ++i) order[static_cast<std::size_t>(i)] = i;
  std::shuffle(order.begin(), order.end(), random);
  for (int i = 0; i < nodes; ++i) {
    const int a = order[static_cast<std::size_t>(i)];
    join(topology, a, order[static_cast<std::size_t>((i + 1) % nodes)], 1 + pick(4));
  }
  for (int extra = pick(2 * nodes); extra > 0; --extra) {
    const int a = pick(nodes);
    const int b = pick(nodes);
    if (a == b) continue;
    if (switches > 0) {
      join(topology, a, b, 1 + pick(6));  // switches stay in balance
    } else {
      add_link(topology, a, b, 1 + pick(6));
    }
  }
  return topology;
}

double capacity_across(const Topology& topology, unsigned set) {
  double gb_s = 0;
  for (const Topology::Link& link : topology.links) {
    if ((set >> link.src & 1U) != 0 && (set >> link.dst & 1U) == 0) {
      gb_s += 1e-9 / link.beta_s_per_byte;
    }
  }
  return gb_s;
}

TEST(BoundsOnRandomWirings, AllGatherIsTheWorstOfAllSubsets) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 400; ++trial) {
    const int n = 2 + trial % 5;
    const int switches = trial % 3;
    const Topology topology = random_wiring(n, switches, random);
    double worst = 0;  // seconds per share, times 10⁹
    for (unsigned set = 1; set < 1U << (n + switches); ++set) {
      const int inside = std::popcount(set & ((1U << n) - 1));
      if (inside == 0 || inside == n) continue;
      worst = std::max(worst, inside / capacity_across(topology, set));
    }
    const Bound bound = lower_bound(topology, {CollectiveKind::all_gather});
    ASSERT_NEAR(bound.seconds_per_byte * 1e9 * n, worst, worst * 1e-9) << "trial " << trial;
    // The cut that is named is one that explains the figure.
    double crossing = 0;
    for (const int link : bound.cut_links) {
      crossing += 1e-9 / topology.links[static_cast<std::size_t>(link)].beta_s_per_byte;
    }
    ASSERT_NEAR(static_cast<double>(bound.cut_ranks.size()) / crossing, worst, worst * 1e-9);
  }
}

TEST(BoundsOnRandomWirings, NoKindBeatsAnyCut) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 100; ++trial) {
    const int n = 2 + trial % 5;
    const Topology topology = random_wiring(n, trial % 2, random);
    double exchange = 0, scatter = 0, gather = 0, least = 1e9;
    const int nodes = static_cast<int>(topology.nodes.size());
    for (unsigned set = 1; set < 1U << nodes; ++set) {
      const int inside = std::popcount(set & ((1U << n) - 1));
      if (inside == 0 || inside == n) continue;
      const double gb_s = capacity_across(topology, set);
      exchange = std::max(exchange, inside * (n - inside) / gb_s);
      if ((set & 1U) != 0) scatter = std::max(scatter, (n - inside) / gb_s);
      if ((set & 1U) == 0) gather = std::max(gather, inside / gb_s);
      least = std::min(least, gb_s);
    }
    const auto times = [&](CollectiveKind kind) {
      return lower_bound(topology, {kind, 0}).seconds_per_byte * 1e9 * n;
    };
    // One source or one sink: cuts tell the whole truth (Ford & Fulkerson). Many: only a limit.
    ASSERT_NEAR(times(CollectiveKind::scatter), scatter, scatter * 1e-6) << "trial " << trial;
    ASSERT_NEAR(times(CollectiveKind::gather), gather, gather * 1e-6) << "trial " << trial;
    ASSERT_GE(times(CollectiveKind::all_to_all), exchange * (1 - 1e-6)) << "trial " << trial;
    const Bound reduce = lower_bound(topology, {CollectiveKind::all_reduce});
    ASSERT_GE(reduce.seconds_per_byte * 1e9, 1 / least * (1 - 1e-9)) << "trial " << trial;
    ASSERT_LE(reduce.seconds_per_byte, reduce.reduce_scatter_all_gather * (1 + 1e-6))
        << "a bound above what can be reached, trial " << trial << ": " << reduce.cut;
  }
}

TEST(BoundsOnRandomWirings, APortGroupThatNeverFillsChangesNothing) {
  // The same wirings once by cuts alone and once by the linear program, which a group calls for.
  std::mt19937 random(13);
  for (int trial = 0; trial < 60; ++trial) {
    const Topology plain = random_wiring(2 + trial % 5, trial % 3, random);
    Topology grouped = plain;
    add_port_group(grouped, "roomy", {0, 2}, 1000);
    for (const CollectiveKind kind : kAllKinds) {
      const Bound expected = lower_bound(plain, {kind, 0});
      const Bound bound = lower_bound(grouped, {kind, 0});
      ASSERT_NEAR(bound.seconds_per_byte, expected.seconds_per_byte,
                  expected.seconds_per_byte * 1e-6)
          << name_of(kind) << ", trial " << trial << ": " << bound.method;
      ASSERT_THAT(bound.cut_port_groups, IsEmpty());
    }
  }
}

TEST(Bounds, OfExchangesByPricesAreNearThoseOfTheLinearProgram) {
  for (const char* name :
       {"mesh:5x7", "mesh:4x3x3", "torus:4x5", "dragonfly:5x4x1,global=0.5,local=2",
        "random:24,degree=4,seed=3,spread=4", "random:30,degree=3,seed=8,spread=10",
        "switch-tree:20,seed=5,spread=4", "lan:3x2x4,trunk=0.05", "random-lan:15", "2*dgx1",
        "pcie:2x2x2"}) {
    const Topology topology = topology_from_name(name);
    const bounds::Network network(topology, bounds::Direction::forward);
    const double exact = bounds::exchange_rate(network).gb_s;
    const double priced = bounds::priced_exchange_rate(network).gb_s;
    EXPECT_GE(priced, exact * (1 - 1e-6)) << name;
    EXPECT_LE(priced, exact * 1.05) << name;
  }
}

TEST(Bounds, OfExchangesKeepToTheRoutesOfMessages) {
  // The shortest way from a to b is the slow cable; the detour over c is open to no message.
  Topology topology = gpus(4);
  const int a = add_node(topology, "a", NodeKind::network_switch);
  const int b = add_node(topology, "b", NodeKind::network_switch);
  const int c = add_node(topology, "c", NodeKind::network_switch);
  for (const int rank : {0, 1, 2, 3}) join(topology, rank, rank < 2 ? a : b, 100);
  join(topology, a, b, 1);
  join(topology, a, c, 10);
  join(topology, c, b, 10);
  const Bound bound = lower_bound(topology, {CollectiveKind::all_to_all});
  EXPECT_NEAR(bound.algbw_gb_s(), 1, 1e-3) << "four blocks of a quarter each way";
  EXPECT_EQ(bound.method, "prices of routes");
  // But to a rank at c, which passes on.
  topology.rank_nodes.push_back(add_node(topology, "gpu4", NodeKind::gpu));
  join(topology, 7, c, 100);
  EXPECT_GT(algbw(topology, CollectiveKind::all_to_all), 5);
}

TEST(Bounds, OfExchangesLeaveTheNetworkToTheSenderWhereThereAreSeveral) {
  // Hosts 0 and 2 are joined by two; by the faster alone an exchange would take 1.24 times as long.
  const Bound bound =
      lower_bound(topology_from_name("random-lan:14"), {CollectiveKind::all_to_all});
  EXPECT_NEAR(bound.algbw_gb_s(), 0.1589, 1e-3) << "two blocks of a third leave host 2";
  EXPECT_NE(bound.method, "prices of routes");
}

TEST(Bounds, OfExchangesOnLargeIrregularWiringsAreThoseOfTheirNarrowestCut) {
  // Along the longer side each half sends to the other over as many cables as the shorter one has.
  EXPECT_NEAR(algbw(topology_from_name("mesh:18x13"), CollectiveKind::all_to_all),
              234 * 13.0 / (117 * 117), 1e-3);
  // Twice as many where it is closed to rings.
  EXPECT_NEAR(algbw(topology_from_name("torus:5x8x4"), CollectiveKind::all_to_all),
              160 * 40.0 / (80 * 80), 1e-3);
}

TEST(Bounds, AreTheSameEveryTime) {
  std::mt19937 random(17);
  for (int trial = 0; trial < 10; ++trial) {
    const Topology topology = random_wiring(6, trial % 3, random);
    for (const CollectiveKind kind : kAllKinds) {
      const Bound once = lower_bound(topology, {kind});
      const Bound again = lower_bound(topology, {kind});
      EXPECT_EQ(once.seconds_per_byte, again.seconds_per_byte);
      EXPECT_EQ(once.cut, again.cut);
      EXPECT_EQ(once.cut_ranks, again.cut_ranks);
    }
  }
}

}  // namespace
}  // namespace chorus
