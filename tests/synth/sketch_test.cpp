#include "synth/sketch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "chorus/error.hpp"
#include "model/bounds/bounds.hpp"
#include "model/price/cost.hpp"
#include "synth/plan.hpp"
#include "topology/discover/sources.hpp"

namespace chorus::synth {
namespace {

using enum CollectiveKind;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kKiB = 1 << 10, kMiB = 1 << 20, kGiB = 1 << 30;

std::vector<int> local_ranks(int n) {
  std::vector<int> ranks(static_cast<std::size_t>(n));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/// The shapes of the sketches that TACCL ships for two NDv2 boxes.
Sketch ndv2(HostLinks between) {
  Sketch sketch;
  sketch.name = "ndv2";
  sketch.hosts = 2;
  sketch.between = between;
  if (between == HostLinks::listed) sketch.senders = {{0, {1}}};
  sketch.symmetry = {{8, 16}};
  return sketch;
}

/// Odd ranks send for their pair, even ones receive; few links through the switch.
Sketch dgx2_relay() {
  Sketch sketch;
  sketch.name = "dgx2 relay";
  sketch.hosts = 2;
  sketch.switches = {{local_ranks(16), SwitchUse::fewest}};
  sketch.between = HostLinks::listed;
  for (int rank = 1; rank < 16; rank += 2) {
    sketch.senders[rank] = {rank - 1};
    sketch.sends_for[rank] = {rank - 1, rank};
  }
  sketch.symmetry = {{2, 16}, {16, 32}};
  sketch.chunks_per_block = 2;
  return sketch;
}

/// Every rank exchanges with its like; many links through the switch.
Sketch dgx2_direct() {
  Sketch sketch;
  sketch.name = "dgx2 direct";
  sketch.hosts = 2;
  sketch.switches = {{local_ranks(16), SwitchUse::most}};
  sketch.between = HostLinks::direct;
  for (int rank = 0; rank < 16; ++rank) sketch.sends_for[rank] = {rank};
  sketch.symmetry = {{2, 16}, {16, 32}};
  return sketch;
}

using Way = std::tuple<Rank, Rank, ChunkId>;

std::set<Way> ways_of(const Schedule& schedule) {
  std::set<Way> ways;
  for (const Step& step : schedule.steps) {
    for (const Transfer& t : step) ways.emplace(t.src, t.dst, t.chunk);
  }
  return ways;
}

Rank turned_by(const Sketch::Offset& offset, Rank rank) {
  const Rank base = rank / offset.group * offset.group;
  return base + (rank - base + offset.offset) % offset.group;
}

/// The ways, with ranks and the blocks they own turned.
std::set<Way> turned_ways(const Schedule& schedule, const Sketch::Offset& offset) {
  const int n = schedule.world_size;
  const int blocks = schedule.collective.kind == all_to_all ? n * n : n;
  const int pieces = schedule.num_chunks / blocks;
  std::set<Way> ways;
  for (const auto& [src, dst, chunk] : ways_of(schedule)) {
    const int block = chunk / pieces;
    const int image = blocks == n ? turned_by(offset, block)
                                  : turned_by(offset, block / n) * n + turned_by(offset, block % n);
    ways.emplace(turned_by(offset, src), turned_by(offset, dst), image * pieces + chunk % pieces);
  }
  return ways;
}

std::string refusal(const Network& network, const Sketch& sketch) {
  try {
    (void)logical_network(network, sketch);
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

struct Shape {
  std::string name;
  std::string topology;
  Sketch sketch;
  /// Least shares of the bound: all_gather at 1 GiB, all_to_all at 1 GiB.
  double gathers = 0;
  double exchanges = 0;
};

class Shipped : public ::testing::TestWithParam<Shape> {
 protected:
  [[nodiscard]] const Sketch& sketch() const { return GetParam().sketch; }

  const Topology topology_ = topology_from_name(GetParam().topology);
  const Network network_{topology_};
};

TEST_P(Shipped, GivesProvedSchedulesThatKeepToItsLinks) {
  const Network logical = logical_network(network_, sketch());
  EXPECT_LT(logical.edges().size(), network_.edges().size());
  for (const CollectiveKind kind : {all_gather, all_to_all, reduce_scatter, broadcast, reduce}) {
    for (const double size : {kKiB, kGiB}) {
      const auto schedule = sketched(network_, sketch(), {kind, 0}, size, Budget{});
      ASSERT_TRUE(schedule.has_value());
      EXPECT_EQ(first_fault(*schedule), std::nullopt);
      EXPECT_EQ(strays(*schedule, logical), std::nullopt);
    }
  }
}

TEST_P(Shipped, ImposesItsSymmetryOnEveryWay) {
  for (const CollectiveKind kind : {all_gather, all_to_all, reduce_scatter}) {
    for (const double size : {kKiB, kGiB}) {
      const auto schedule = sketched(network_, sketch(), {kind, 0}, size, Budget{});
      ASSERT_TRUE(schedule.has_value());
      for (const Sketch::Offset& offset : sketch().symmetry) {
        EXPECT_EQ(ways_of(*schedule), turned_ways(*schedule, offset)) << offset.offset;
      }
    }
  }
}

TEST_P(Shipped, LetsNobodySendToAnotherHostForWhomItIsNotNamed) {
  const int per_host = network_.world_size() / sketch().hosts;
  const auto schedule = sketched(network_, sketch(), {all_gather, 0}, kMiB, Budget{});
  ASSERT_TRUE(schedule.has_value());
  const int pieces = schedule->num_chunks / network_.world_size();
  int crossings = 0;
  for (const auto& [src, dst, chunk] : ways_of(*schedule)) {
    if (src / per_host == dst / per_host) continue;
    ++crossings;
    const Rank origin = chunk / pieces;
    if (!sketch().sends_for.empty() && origin / per_host == src / per_host) {
      EXPECT_THAT(sketch().sends_for.at(src % per_host), ::testing::Contains(origin % per_host));
    }
  }
  EXPECT_GE(crossings, schedule->num_chunks);
}

TEST_P(Shipped, ComesAsNearToTheBoundAsItsLinksLetIt) {
  for (const auto& [kind, share] :
       {std::pair(all_gather, GetParam().gathers), std::pair(all_to_all, GetParam().exchanges)}) {
    const Bound bound = lower_bound(topology_, {kind, 0});
    const auto schedule = sketched(network_, sketch(), {kind, 0}, kGiB, Budget{});
    ASSERT_TRUE(schedule.has_value());
    const double seconds = simulate(*schedule, topology_, Routes(topology_), kGiB).seconds;
    EXPECT_GE(bound.seconds_per_byte * kGiB / seconds, share) << static_cast<int>(kind);
    EXPECT_LE(bound.seconds_per_byte * kGiB / seconds, 1 + 1e-9);
  }
}

TEST_P(Shipped, GivesTheSameScheduleAgain) {
  EXPECT_EQ(sketched(network_, sketch(), {all_gather, 0}, kMiB, Budget{}),
            sketched(network_, sketch(), {all_gather, 0}, kMiB, Budget{}));
}

INSTANTIATE_TEST_SUITE_P(
    Sketches, Shipped,
    ::testing::Values(Shape{"ndv2_relay", "2*ndv2", ndv2(HostLinks::listed), 0.90, 0.99},
                      Shape{"ndv2_fully_connected", "2*ndv2", ndv2(HostLinks::all), 0.85, 0.99},
                      Shape{"ndv2_direct_map", "2*ndv2", ndv2(HostLinks::direct), 0.85, 0.99},
                      Shape{"dgx2_relay", "2*dgx2", dgx2_relay(), 0.75, 0.99},
                      Shape{"dgx2_direct", "2*dgx2", dgx2_direct(), 0.65, 0.99}),
    [](const auto& test) { return test.param.name; });

/// Links through switches that an all_gather uses.
std::size_t switch_links(Sketch sketch, SwitchUse use, double size) {
  sketch.switches.front().use = use;
  const Network network(topology_from_name("2*dgx2"));
  const auto schedule = sketched(network, sketch, {all_gather, 0}, size, Budget{});
  std::set<std::pair<Rank, Rank>> links;
  for (const auto& [src, dst, chunk] : ways_of(schedule.value())) {
    if (src / 16 == dst / 16) links.emplace(src, dst);
  }
  return links.size();
}

TEST(SwitchUse, FewestTakesFewerLinksThanMost) {
  for (const Sketch& sketch : {dgx2_relay(), dgx2_direct()}) {
    for (const double size : {kKiB, kMiB, kGiB}) {
      const std::size_t few = switch_links(sketch, SwitchUse::fewest, size);
      const std::size_t many = switch_links(sketch, SwitchUse::most, size);
      EXPECT_LE(few, many) << sketch.name << ", " << size;
      if (sketch.name == "dgx2 relay" && size == kKiB) {
        EXPECT_LT(few, many);
      }
    }
  }
}

class BadSketch : public ::testing::Test {
 protected:
  const Network network_{topology_from_name("2*ndv2")};
  Sketch sketch_ = ndv2(HostLinks::listed);
};

TEST_F(BadSketch, HostsThatDoNotDivideTheRanks) {
  sketch_.hosts = 3;
  EXPECT_THAT(refusal(network_, sketch_), HasSubstr("the 16 ranks of the topology are not 3"));
}

TEST_F(BadSketch, UnknownRanksWhereverTheyAreNamed) {
  const std::string complaint = "there is no local rank 8: a host has ranks 0 to 7";
  Sketch bad = sketch_;
  bad.senders = {{0, {8}}};
  EXPECT_THAT(refusal(network_, bad), AllOf(HasSubstr("senders"), HasSubstr(complaint)));
  bad = sketch_;
  bad.sends_for = {{8, {0}}};
  EXPECT_THAT(refusal(network_, bad), AllOf(HasSubstr("sends for"), HasSubstr(complaint)));
  bad = sketch_;
  bad.relays = {8};
  EXPECT_THAT(refusal(network_, bad), AllOf(HasSubstr("relays"), HasSubstr(complaint)));
  bad = sketch_;
  bad.switches = {{{0, 8}, SwitchUse::any}};
  EXPECT_THAT(refusal(network_, bad), AllOf(HasSubstr("switches"), HasSubstr(complaint)));
  bad = sketch_;
  bad.forbidden = {{0, 8}};
  EXPECT_THAT(refusal(network_, bad), AllOf(HasSubstr("forbidden"), HasSubstr(complaint)));
  bad = sketch_;
  bad.allowed = {{8, 0}};
  EXPECT_THAT(refusal(network_, bad), AllOf(HasSubstr("allowed"), HasSubstr(complaint)));
}

TEST_F(BadSketch, LinksThatTheTopologyLacks) {
  const Network ring(topology_from_name("ring:8"));
  Sketch bad;
  bad.allowed = {{0, 2}};
  EXPECT_THAT(refusal(ring, bad), HasSubstr("the topology has no link 0 -> 2"));
}

TEST_F(BadSketch, NoSenders) {
  sketch_.senders.clear();
  EXPECT_THAT(refusal(network_, sketch_), HasSubstr("nothing leaves a host"));
}

TEST_F(BadSketch, NoChunks) {
  sketch_.chunks_per_block = 0;
  EXPECT_THAT(refusal(network_, sketch_), HasSubstr("at least 1"));
}

TEST_F(BadSketch, CutsARankOffAndOneConstraintIsToBlame) {
  sketch_.symmetry.clear();
  sketch_.forbidden = {{0, 1}, {4, 5}, {5, 4}};
  sketch_.relays = {0, 1, 2, 3, 4, 5, 6};
  EXPECT_EQ(refusal(network_, sketch_), "accepted");
  // Only 0 sends to the other host; forbid all that leads to it.
  sketch_.forbidden = {{4, 5}, {1, 0}, {2, 0}, {3, 0}, {4, 0}};
  const std::string why = refusal(network_, sketch_);
  EXPECT_THAT(why, AllOf(HasSubstr("data of rank 0 has no way to rank 8"),
                         HasSubstr("1 -> 0 is forbidden")));
  EXPECT_THAT(why, ::testing::Not(HasSubstr("4 -> 5"))) << "that one is not to blame";
}

TEST_F(BadSketch, SenderThatIsNone) {
  sketch_.sends_for = {{3, {5}}};  // but 3 sends to nobody
  EXPECT_THAT(refusal(network_, sketch_), AllOf(HasSubstr("data of rank 5 has no way to rank 8"),
                                                HasSubstr("3 sends for [5]")));
}

TEST_F(BadSketch, RelaysThatDoNotReachTheSender) {
  sketch_.relays = {0};  // the receiver, 1, is none: nobody passes on what arrives
  EXPECT_THAT(refusal(network_, sketch_), HasSubstr("relays [0]"));
}

TEST_F(BadSketch, SymmetryThatTheTopologyHasNot) {
  sketch_.symmetry = {{1, 8}};
  EXPECT_THAT(refusal(network_, sketch_),
              HasSubstr("symmetry [1, 8] does not map the logical topology onto itself: the link"));
}

TEST_F(BadSketch, SymmetryThatTheSketchBreaks) {
  const Network network(topology_from_name("2*dgx2"));
  Sketch bad = dgx2_direct();
  bad.sends_for.clear();
  EXPECT_EQ(refusal(network, bad), "accepted");
  bad.forbidden = {{0, 1}};
  EXPECT_THAT(refusal(network, bad), HasSubstr("the sketch's links break it"));
  bad.forbidden.clear();
  bad.relays = {0};
  bad.switches.clear();
  EXPECT_THAT(refusal(network, bad), HasSubstr("symmetry [2, 16] does not fit relays and senders"));
}

TEST_F(BadSketch, SymmetryOffsetsThatDoNotFit) {
  sketch_.symmetry = {{1, 5}};
  EXPECT_THAT(refusal(network_, sketch_), HasSubstr("groups of 5 do not make up the 16 ranks"));
  sketch_.symmetry = {{8, 8}};
  EXPECT_THAT(refusal(network_, sketch_), HasSubstr("the offset is to be 1 to 7"));
  sketch_.symmetry = {{1, 4}, {1, 8}};
  EXPECT_THAT(refusal(network_, sketch_), HasSubstr("leave rank"));
}

TEST(Relays, AloneMayPassOnWhatIsNotTheirOwn) {
  const Network network(topology_from_name("dgx1"));
  Sketch sketch;
  sketch.relays = {0, 4};
  const auto schedule = sketched(network, sketch, {all_gather, 0}, kMiB, Budget{});
  ASSERT_TRUE(schedule.has_value());
  EXPECT_EQ(first_fault(*schedule), std::nullopt);
  for (const auto& [src, dst, chunk] : ways_of(*schedule)) {
    EXPECT_TRUE(src == chunk || src == 0 || src == 4) << src << " passes on " << chunk;
  }
}

TEST(Inferred, RelaysWhereRanksShareACardAndRailsWhereNot) {
  const std::vector<Sketch> shared = inferred_sketches(Network(topology_from_name("2*dgx2")));
  ASSERT_EQ(shared.size(), 3);
  EXPECT_EQ(shared[0].name, "relay");
  EXPECT_EQ(shared[0].senders.size(), 8);
  EXPECT_EQ(shared[0].senders.at(2), std::vector{3});
  EXPECT_EQ(shared[0].symmetry, (std::vector<Sketch::Offset>{{2, 16}, {16, 32}}));
  const std::vector<Sketch> own = inferred_sketches(Network(topology_from_name("4*dgx-h100")));
  ASSERT_EQ(own.size(), 2);
  EXPECT_EQ(own[0].between, HostLinks::direct);
  EXPECT_EQ(own[0].symmetry, (std::vector<Sketch::Offset>{{1, 8}, {8, 32}}));
}

TEST(Inferred, ServesThePlannerWithoutAFile) {
  for (const char* name : {"2*ndv2", "dgx1", "ring:6", "mesh:3x3", "4*dgx-a100"}) {
    const Topology topology = topology_from_name(name);
    PlanOptions options;
    options.kinds = {all_reduce, all_gather, reduce_scatter, broadcast, reduce};
    options.sizes = {1 << 10, 1 << 30};
    const Planned planned = make_plan(topology, options, {sketched_strategy()}, Budget{});
    for (const Choice& choice : planned.choices) {
      EXPECT_EQ(first_fault(choice.schedule), std::nullopt) << name;
      EXPECT_EQ(choice.strategy, "sketched");
    }
  }
}

TEST(Planned, WithASketchUsesItsLinksAloneForCombiningToo) {
  const Topology topology = topology_from_name("2*ndv2");
  const Network network(topology);
  const Sketch sketch = ndv2(HostLinks::listed);
  const Network logical = logical_network(network, sketch);
  PlanOptions options;
  options.sizes = {1 << 20};
  options.accepts = [&](const Schedule& schedule) { return !strays(schedule, logical); };
  const Planned planned = make_plan(topology, options, {sketched_strategy(sketch)}, Budget{});
  ASSERT_EQ(planned.choices.size(), options.kinds.size());
  for (const Choice& choice : planned.choices) {
    EXPECT_EQ(strays(choice.schedule, logical), std::nullopt) << static_cast<int>(choice.kind);
  }
}

}  // namespace
}  // namespace chorus::synth
