#include "synth/packing.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "chorus/error.hpp"
#include "model/bounds.hpp"
#include "model/cost.hpp"
#include "topology/sources.hpp"

namespace chorus::synth {
namespace {

constexpr double kGigabyte = 1e9;

double packed_share(const Topology& topology, Collective collective) {
  const bool combines = collective.kind == CollectiveKind::reduce_scatter ||
                        collective.kind == CollectiveKind::reduce;
  const bool rooted = collective.kind == CollectiveKind::broadcast ||
                      collective.kind == CollectiveKind::reduce;
  PackingOptions options;
  if (rooted) options.root = collective.root;
  const auto packing = pack_trees(topology, combines ? Direction::reversed : Direction::forward,
                                  options, Effort{});
  if (!packing) return 0;
  const std::size_t roots = rooted ? 1 : static_cast<std::size_t>(topology.world_size());
  EXPECT_EQ(packing->trees.size(), roots * static_cast<std::size_t>(packing->trees_per_root));
  return packing->rate_gb_s / lower_bound(topology, collective).algbw_gb_s();
}

class Machine : public testing::TestWithParam<const char*> {};

TEST_P(Machine, IsPackedAsFullAsTheCutsAllow) {
  const Topology topology = topology_from_name(GetParam());
  EXPECT_NEAR(packed_share(topology, {CollectiveKind::all_gather}), 1, 1e-6);
  EXPECT_NEAR(packed_share(topology, {CollectiveKind::reduce_scatter}), 1, 1e-6);
  EXPECT_NEAR(packed_share(topology, {CollectiveKind::broadcast, 1}), 1, 1e-6);
  EXPECT_NEAR(packed_share(topology, {CollectiveKind::reduce, 1}), 1, 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Catalog, Machine,
                         testing::Values("ring:8", "torus:4x4", "torus:4x4x4", "mesh:4x4",
                                         "hypercube:4", "dgx1", "dgx2", "mi250x", "mi250", "mi300x",
                                         "dgx-a100", "2*dgx-a100", "dgx-h100", "2*dgx-h100",
                                         "4*dgx-h100", "2*ndv2", "4*ndv2", "nvl72", "pcie8",
                                         "fat-tree:4x8"));

}  // namespace
}  // namespace chorus::synth
