// What crosses natural cuts: limits of small sizes.
#include <gtest/gtest.h>

#include "model/bounds/bounds.hpp"
#include "topology/discover/sources.hpp"

namespace chorus {
namespace {

TEST(Crossings, LetWhatIsNotCombinedCrossInFull) {
  // 8 ranks need 8 shares each over 8 NICs of 25 GB/s, or wait 0.7 us for a hop inside.
  const Bound bound =
      lower_bound(topology_from_name("2*dgx-a100"), {CollectiveKind::all_reduce, 0});
  EXPECT_NEAR(bound.seconds(1024), 1.7e-6 + 8 * 1024 / 25e9, 1e-12);
  // Beyond the time for a hop on either side each message does for more.
  EXPECT_LT(bound.seconds(16384), 1.7e-6 + 8 * 16384 / 25e9);
  EXPECT_GT(bound.seconds(16384), 2.4e-6);
  EXPECT_NEAR(bound.seconds(0), bound.latency_s, 1e-15);
}

TEST(Crossings, TheLatencyOfAHopComesBeforeAllBytes) {
  constexpr double kMiB = 1 << 20;
  const Bound box = lower_bound(topology_from_name("dgx-a100"), {CollectiveKind::all_reduce});
  EXPECT_NEAR(box.seconds(kMiB), box.latency_s + box.seconds_per_byte * kMiB, 1e-12);
  // What limits here is what leaves the hosts, so the hop is one between hosts.
  const Bound hosts = lower_bound(topology_from_name("3*ndv2"), {CollectiveKind::all_reduce});
  EXPECT_GE(hosts.seconds(kMiB), 1.7e-6 + hosts.seconds_per_byte * kMiB * (1 - 1e-9));
  const Bound exchange = lower_bound(topology_from_name("dgx1"), {CollectiveKind::all_to_all});
  EXPECT_GT(exchange.seconds(kMiB), exchange.seconds_per_byte * kMiB);
}

TEST(Crossings, OfAnAllGatherHandOnButNeverCombine) {
  // 64 blocks of 64 bytes must cross a NIC of 12.5 GB/s one by one until some can be handed on.
  const Bound bound = lower_bound(topology_from_name("2*ndv2"), {CollectiveKind::all_gather, 0});
  EXPECT_NEAR(bound.seconds(1024), 1.7e-6 + 64 * 64 / 12.5e9, 1e-12);
  const Bound turned =
      lower_bound(topology_from_name("2*ndv2"), {CollectiveKind::reduce_scatter, 0});
  EXPECT_NEAR(turned.seconds(1024), bound.seconds(1024), 1e-15);
}

}  // namespace
}  // namespace chorus
