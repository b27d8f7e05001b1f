// The mapper puts what talks most on the fastest domain, finds what trying everything finds, and
// keeps the numbers of ranks where nothing is gained.
#include "chorus/grid.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "chorus/error.hpp"
#include "topology/discover/sources.hpp"

namespace chorus {
namespace {

using Pattern = GridFlow::Pattern;

/// Dimensions as a trainer has them: stages, replicas, slices.
std::vector<GridFlow> training(double tensor, double data, double pipeline) {
  return {{.name = "pipeline", .dims = {0}, .pattern = Pattern::chain, .bytes = pipeline},
          {.name = "data", .dims = {1}, .bytes = data},
          {.name = "tensor", .dims = {2}, .bytes = tensor}};
}

int box_of(const Topology& topology, Rank rank) {
  int node = topology.rank_nodes[static_cast<std::size_t>(rank)];
  while (topology.nodes[static_cast<std::size_t>(node)].parent >= 0) {
    node = topology.nodes[static_cast<std::size_t>(node)].parent;
  }
  return node;
}

/// Ranks of two boxes in turn: 0 and 2 in one, 1 and 3 in the other.
Topology shuffled(Topology topology) {
  const std::vector<int> nodes = topology.rank_nodes;
  const std::size_t half = nodes.size() / 2;
  for (std::size_t r = 0; r < nodes.size(); ++r) {
    topology.rank_nodes[r] = nodes[r % 2 * half + r / 2];
  }
  return topology;
}

TEST(Grid, PutsTensorParallelRanksIntoOneBoxWhateverTheirNumbers) {
  const std::vector<int> sizes{1, 2, 8};
  for (const bool turned : {false, true}) {
    Topology topology = topology_from_name("2*dgx-a100");
    if (turned) topology = shuffled(std::move(topology));
    const GridMapping mapping = map_grid(topology, sizes, training(1e9, 1e8, 0));
    for (std::size_t replica = 0; replica < 2; ++replica) {
      std::set<int> boxes;
      for (std::size_t i = 0; i < 8; ++i) {
        boxes.insert(box_of(topology, mapping.ranks[8 * replica + i]));
      }
      EXPECT_EQ(boxes.size(), 1U);
    }
    std::vector<Rank> numbered(16);
    std::iota(numbered.begin(), numbered.end(), 0);
    const double by_number = price_grid(topology, sizes, training(1e9, 1e8, 0), numbered).seconds;
    if (turned) {
      EXPECT_LT(mapping.seconds, by_number / 5);
    } else {
      EXPECT_EQ(mapping.ranks, numbered);
      EXPECT_EQ(mapping.seconds, by_number);
    }
  }
}

TEST(Grid, NestsTheDimensionsByWhatTheyMove) {
  const Topology topology = topology_from_name("2*dgx-a100");
  const std::vector<int> sizes{2, 2, 4};
  EXPECT_EQ(map_grid(topology, sizes, training(1e9, 1e8, 1e6)).nesting,
            (std::vector<int>{2, 1, 0}));
  // A pipeline that moves more than replicas do stays inside.
  EXPECT_EQ(map_grid(topology, sizes, training(1e9, 1e6, 1e9)).nesting,
            (std::vector<int>{2, 0, 1}));
  EXPECT_EQ(map_grid(topology, sizes, training(1e3, 1e9, 1e9)).nesting.back(), 2);
}

/// Two fast islands of `size` ranks behind one slow link, numbered in turn.
Topology islands(int size) {
  Topology topology{
      .name = "islands", .nodes = {}, .links = {}, .port_groups = {}, .rank_nodes = {}};
  const auto join = [&](int a, int b, double alpha, double gb_s) {
    topology.links.push_back(
        {.src = a, .dst = b, .alpha_s = alpha, .beta_s_per_byte = 1e-9 / gb_s, .type = "x"});
    topology.links.push_back(
        {.src = b, .dst = a, .alpha_s = alpha, .beta_s_per_byte = 1e-9 / gb_s, .type = "x"});
  };
  topology.nodes.push_back({.name = "switch0", .kind = NodeKind::gpu_switch, .detail = {}});
  topology.nodes.push_back({.name = "switch1", .kind = NodeKind::gpu_switch, .detail = {}});
  join(0, 1, 1e-5, 1);
  for (int r = 0; r < 2 * size; ++r) {
    topology.nodes.push_back(
        {.name = "gpu" + std::to_string(r), .kind = NodeKind::gpu, .detail = {}});
    topology.rank_nodes.push_back(r + 2);
    join(r % 2, r + 2, 1e-6, 50);
  }
  return topology;
}

TEST(Grid, FindsWhatTryingEveryMappingFinds) {
  const Topology topology = islands(3);
  const std::vector<int> sizes{1, 2, 3};
  for (const auto& flows : {training(1e9, 1e8, 0), training(1e7, 1e9, 0), training(1e8, 1e8, 0)}) {
    std::vector<Rank> ranks(6);
    std::iota(ranks.begin(), ranks.end(), 0);
    double best = 1e9;
    do {
      best = std::min(best, price_grid(topology, sizes, flows, ranks).seconds);
    } while (std::ranges::next_permutation(ranks).found);
    EXPECT_LE(map_grid(topology, sizes, flows).seconds, best * 1.0011);
  }
}

// The slow link carries one ring's bytes per direction, however many ranks are behind it.
TEST(Grid, PricesWhatCrossesTheSlowLinkTogether) {
  const Topology topology = islands(4);
  const std::vector<int> sizes{1, 2, 4};
  const GridMapping mapping = map_grid(topology, sizes, training(1e9, 1e8, 0));
  EXPECT_NEAR(mapping.prices[1].beta_s_per_byte, 4e-9, 1e-15);     // 4 pairs of replicas at 1 GB/s
  EXPECT_NEAR(mapping.prices[2].beta_s_per_byte, 0.02e-9, 1e-15);  // 50 GB/s each
  EXPECT_NEAR(mapping.prices[2].alpha_s, 2e-6, 1e-12);
  EXPECT_NEAR(mapping.seconds, 1e8 * 4e-9 + 1e9 * 0.02e-9, 1e-6);
  // Each of 4 ranks sends 4/7 of its bytes to the other side.
  const GridFlow pairs{.name = "all", .dims = {0, 1, 2}, .pattern = Pattern::pairs, .bytes = 7};
  EXPECT_NEAR(map_grid(topology, sizes, {&pairs, 1}).prices[0].beta_s_per_byte, 16.0 / 7 * 1e-9,
              1e-15);
}

TEST(Grid, RefusesWhatCannotBe) {
  const Topology topology = islands(2);
  EXPECT_THROW(map_grid(topology, std::vector<int>{2, 3}, {}), InputError);
  EXPECT_THROW(map_grid(topology, std::vector<int>{0, 4}, {}), InputError);
  EXPECT_THROW(price_grid(topology, std::vector<int>{4}, {}, {0, 1, 1, 2}), InputError);
  EXPECT_THROW(price_grid(topology, std::vector<int>{4}, {}, {0, 1}), InputError);
}

}  // namespace
}  // namespace chorus
