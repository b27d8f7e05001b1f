// Which schedule calls on GPU memory take: by the GPUs' wiring, a plan before all else.
#include "runtime/device_choice.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "collectives/algorithms.hpp"
#include "device/image.hpp"
#include "model/contract.hpp"
#include "model/direct.hpp"
#include "model/program.hpp"
#include "topology/sources.hpp"

namespace chorus {
namespace {

using ::testing::HasSubstr;

/// `hosts` of `each` GPUs, which reach each other within a host.
GpuPlaces places_of(int hosts, int each, bool reach = true) {
  GpuPlaces places;
  for (int r = 0; r < hosts * each; ++r) places.host.push_back(r / each);
  for (const int a : places.host) {
    for (const int b : places.host) places.reaches.push_back(reach && a == b);
  }
  return places;
}

Topology job(int hosts, int each) {
  return job_topology(
      {.hosts = hosts, .ranks_per_host = each, .cores_per_host = each, .shared_memory = true});
}

DeviceChoice choice(int hosts, int each, Plan plan = {}) {
  static const Options options;
  return {std::move(plan), places_of(hosts, each), job(hosts, each), options, std::nullopt};
}

constexpr std::uint64_t kLarge = 256 << 20;

TEST(DeviceChoice, OnOneSwitchFewBytesTakeOneStepAndManyTwo) {
  for (const int n : {2, 3, 5, 8, 16}) {
    DeviceChoice one_host = choice(1, n);
    EXPECT_EQ(one_host.choose(CollectiveKind::all_reduce, 8).schedule->steps.size(), 1U) << n;
    EXPECT_EQ(one_host.choose(CollectiveKind::all_reduce, kLarge).schedule->steps.size(), 2U) << n;
  }
}

TEST(DeviceChoice, WhereAllReachAllEverySizeHasADirectForm) {
  for (const int n : {2, 3, 8, 12}) {
    DeviceChoice one_host = choice(1, n);
    for (int k = 0; k < static_cast<int>(CollectiveKind::barrier); ++k) {
      for (const std::uint64_t size : {std::uint64_t{8}, std::uint64_t{1} << 20, kLarge}) {
        const auto kind = static_cast<CollectiveKind>(k);
        EXPECT_TRUE(direct(*one_host.choose(kind, size).schedule)) << name_of(kind) << " " << n;
      }
    }
  }
}

// A fold takes kMostOperands at most: what has one from every rank serves no more ranks than that.
TEST(DeviceChoice, MoreRanksThanAFoldHasOperandsFindSchedulesAllTheSame) {
  for (const auto& [hosts, each] : {std::pair(1, 130), std::pair(33, 4)}) {
    DeviceChoice many = choice(hosts, each);
    for (int k = 0; k < static_cast<int>(CollectiveKind::barrier); ++k) {
      for (const std::uint64_t size : {std::uint64_t{8}, kLarge}) {
        const Schedule& chosen = *many.choose(static_cast<CollectiveKind>(k), size).schedule;
        EXPECT_TRUE(device::has_room_for_operands(lower(chosen))) << chosen.name;
      }
    }
  }
}

// What each host sends to the others: two_shot over all ranks sends every byte of every rank's
// share out of its host; a hierarchy sums within hosts first.
double bytes_between_hosts(const Schedule& schedule, int each) {
  double chunks = 0;
  for (const Step& step : schedule.steps) {
    for (const Transfer& t : step) chunks += t.src / each != t.dst / each ? 1 : 0;
  }
  return chunks / schedule.num_chunks;
}

TEST(DeviceChoice, SeveralHostsTakeAFormThatSendsLittleBetweenThem) {
  for (const auto& [hosts, each] :
       {std::pair(2, 8), std::pair(2, 4), std::pair(4, 8), std::pair(3, 2)}) {
    DeviceChoice several = choice(hosts, each);
    for (const CollectiveKind kind : {CollectiveKind::all_reduce}) {
      const Schedule& chosen = *several.choose(kind, kLarge).schedule;
      // 2(h−1)/h of the buffer into each host and out of it, the least there is.
      EXPECT_LE(bytes_between_hosts(chosen, each), 2.0 * (hosts - 1) + 1e-9)
          << chosen.name << " " << hosts << " x " << each;
      const Schedule flat =
          algorithm("two_shot").make({.kind = kind, .world_size = hosts * each, .levels = {}});
      EXPECT_LT(bytes_between_hosts(chosen, each), bytes_between_hosts(flat, each));
    }
  }
}

TEST(DeviceChoice, APlanComesFirstAndLeavesTheRest) {
  Plan plan;
  plan.world_size = 8;
  plan.entries.push_back(
      {.min_bytes = 1000,
       .max_bytes = 2000,
       .schedule = algorithm("ring").make(
           {.kind = CollectiveKind::all_reduce, .world_size = 8, .levels = {}})});
  DeviceChoice planned = choice(1, 8, plan);
  EXPECT_EQ(*planned.choose(CollectiveKind::all_reduce, 1500).schedule, plan.entries[0].schedule);
  EXPECT_EQ(planned.choose(CollectiveKind::all_reduce, kLarge).schedule->steps.size(), 2U);
}

TEST(DeviceChoice, SaysWhatRunsAndWhyNotTheOthers) {
  DeviceChoice several = choice(2, 8);
  const std::string text = several.explain(CollectiveKind::all_reduce, kLarge);
  EXPECT_THAT(text, HasSubstr("all_reduce of 268435456 bytes runs "));
  EXPECT_THAT(choice(1, 8).explain(CollectiveKind::all_reduce, kLarge),
              HasSubstr("all GPUs reach each other's memory"));
}

// Somebody described the GPUs: then that is what counts.
TEST(DeviceChoice, ADescribedTopologyOfGpusIsTaken) {
  const Topology dgx = topology_from_name("2*dgx-h100");
  EXPECT_EQ(gpu_topology(places_of(2, 8), dgx), dgx);
  EXPECT_NE(gpu_topology(places_of(2, 8), job(2, 8)), job(2, 8));
}

TEST(DeviceChoice, LevelsAreThoseOfEqualHostsInOrder) {
  EXPECT_EQ(gpu_levels(places_of(2, 8)), (std::vector<int>{8, 2}));
  GpuPlaces mixed = places_of(2, 2);
  mixed.host = {0, 1, 0, 1};
  EXPECT_TRUE(gpu_levels(mixed).empty());
  mixed.host = {0, 0, 0, 1};
  EXPECT_TRUE(gpu_levels(mixed).empty());
}

}  // namespace
}  // namespace chorus
