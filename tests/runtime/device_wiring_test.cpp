// Which schedule calls on GPU memory take: by the GPUs' wiring, a plan before all else.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "chorus/error.hpp"
#include "collectives/algorithms.hpp"
#include "device/image.hpp"
#include "model/json/json.hpp"
#include "model/program/direct.hpp"
#include "model/program/program.hpp"
#include "model/schedule/contract.hpp"
#include "runtime/gpu/wiring.hpp"
#include "topology/discover/sources.hpp"
#include "topology/import/record.hpp"

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

const Options kOptions;

Selection choice(int hosts, int each, Plan plan = {}) {
  const GpuPlaces places = places_of(hosts, each);
  return {gpu_topology(places, job(hosts, each)), gpu_levels(places), kOptions, std::move(plan),
          gpu_pricing(places.all_reach(), kOptions)};
}

const Schedule& chosen(Selection& from, CollectiveKind kind, std::uint64_t size_bytes) {
  return from.considered(kind).entries[from.entry_for(kind, size_bytes)].schedule;
}

constexpr std::uint64_t kLarge = 256 << 20;

TEST(DeviceWiring, OnOneSwitchFewBytesTakeOneStepAndManyTwo) {
  for (const int n : {2, 3, 5, 8, 16}) {
    Selection one_host = choice(1, n);
    EXPECT_EQ(chosen(one_host, CollectiveKind::all_reduce, 8).steps.size(), 1U) << n;
    EXPECT_EQ(chosen(one_host, CollectiveKind::all_reduce, kLarge).steps.size(), 2U) << n;
  }
}

TEST(DeviceWiring, WhereAllReachAllEverySizeHasADirectForm) {
  for (const int n : {2, 3, 8, 12}) {
    Selection one_host = choice(1, n);
    for (int k = 0; k < static_cast<int>(CollectiveKind::barrier); ++k) {
      for (const std::uint64_t size : {std::uint64_t{8}, std::uint64_t{1} << 20, kLarge}) {
        const auto kind = static_cast<CollectiveKind>(k);
        EXPECT_TRUE(direct(chosen(one_host, kind, size))) << name_of(kind) << " " << n;
      }
    }
  }
}

// A fold takes kMostOperands at most: what has one from every rank serves no more ranks than that.
TEST(DeviceWiring, MoreRanksThanAFoldHasOperandsFindSchedulesAllTheSame) {
  for (const auto& [hosts, each] : {std::pair(1, 130), std::pair(33, 4)}) {
    Selection many = choice(hosts, each);
    for (int k = 0; k < static_cast<int>(CollectiveKind::barrier); ++k) {
      for (const std::uint64_t size : {std::uint64_t{8}, kLarge}) {
        const Schedule& taken = chosen(many, static_cast<CollectiveKind>(k), size);
        EXPECT_TRUE(device::has_room_for_operands(lower(taken))) << taken.name;
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

TEST(DeviceWiring, SeveralHostsTakeAFormThatSendsLittleBetweenThem) {
  for (const auto& [hosts, each] :
       {std::pair(2, 8), std::pair(2, 4), std::pair(4, 8), std::pair(3, 2)}) {
    Selection several = choice(hosts, each);
    for (const CollectiveKind kind : {CollectiveKind::all_reduce}) {
      const Schedule& taken = chosen(several, kind, kLarge);
      // 2(h−1)/h of the buffer into each host and out of it, the least there is.
      EXPECT_LE(bytes_between_hosts(taken, each), 2.0 * (hosts - 1) + 1e-9)
          << taken.name << " " << hosts << " x " << each;
      const Schedule flat =
          algorithm("two_shot").make({.kind = kind, .world_size = hosts * each, .levels = {}});
      EXPECT_LT(bytes_between_hosts(taken, each), bytes_between_hosts(flat, each));
    }
  }
}

TEST(DeviceWiring, APlanComesFirstAndLeavesTheRest) {
  Plan plan;
  plan.world_size = 8;
  plan.entries.push_back(
      {.min_bytes = 1000,
       .max_bytes = 2000,
       .schedule = algorithm("ring").make(
           {.kind = CollectiveKind::all_reduce, .world_size = 8, .levels = {}})});
  Selection planned = choice(1, 8, plan);
  EXPECT_EQ(chosen(planned, CollectiveKind::all_reduce, 1500), plan.entries[0].schedule);
  EXPECT_EQ(chosen(planned, CollectiveKind::all_reduce, kLarge).steps.size(), 2U);
}

TEST(DeviceWiring, SaysWhatRunsAndWhyNotTheOthers) {
  Selection several = choice(2, 8);
  const std::string text = several.explain(CollectiveKind::all_reduce, kLarge);
  EXPECT_THAT(text, HasSubstr("all_reduce of 268435456 bytes runs "));
  EXPECT_THAT(choice(1, 8).explain(CollectiveKind::all_reduce, kLarge),
              HasSubstr("all GPUs reach each other's memory"));
}

// Somebody described the GPUs: then that is what counts.
TEST(DeviceWiring, ADescribedTopologyOfGpusIsTaken) {
  const Topology dgx = topology_from_name("2*dgx-h100");
  EXPECT_EQ(gpu_topology(places_of(2, 8), dgx), dgx);
  EXPECT_NE(gpu_topology(places_of(2, 8), job(2, 8)), job(2, 8));
}

DiscoveredHost recorded(const char* machine) {
  DiscoveredHost host = host_from_record(fmt::format("{}/machines/{}", CHORUS_DATA, machine));
  for (std::size_t i = 0; i < host.gpus.size(); ++i) {  // recordings do not tell all
    if (host.gpus[i].empty()) host.gpus[i] = fmt::format("GPU-{}", i);
  }
  return host;
}

/// Two hosts of this kind, whose ranks have the GPUs in reverse order.
GpuPlaces two_of(const DiscoveredHost& host) {
  const auto each = static_cast<int>(host.gpus.size());
  GpuPlaces places = places_of(2, each);
  std::vector<std::string> uuids;
  for (int r = 0; r < 2 * each; ++r) {
    uuids.push_back(host.gpus[static_cast<std::size_t>(each - 1 - r % each)]);
  }
  std::vector<std::string> said(places.host.size());
  said[0] = said[static_cast<std::size_t>(each)] = to_json(host);
  learn_gpus(places, uuids, said);
  return places;
}

// Everything that was discovered between GPUs is there, and each rank sits where its GPU is.
TEST(DeviceWiring, IsWhatWasDiscoveredOfTheHosts) {
  for (const char* machine : {"eight-gpus-nvswitch", "eight-gpus-mesh", "four-gpus-nvswitch"}) {
    const DiscoveredHost host = recorded(machine);
    const auto each = static_cast<int>(host.gpus.size());
    ASSERT_GT(each, 1) << machine;
    const Topology topology = gpu_topology(two_of(host), job(2, each));
    ASSERT_FALSE(malformed(topology)) << *malformed(topology);
    const auto between_gpus = [](const Topology& t) {
      return std::ranges::count(t.links, "nvlink", &Topology::Link::type);
    };
    EXPECT_EQ(between_gpus(topology), 2 * between_gpus(host.topology)) << machine;
    EXPECT_GT(between_gpus(topology), 0) << machine;
    const Routes routes(topology);
    const Routes alone(host.topology);
    for (Rank a = 0; a < each; ++a) {
      for (Rank b = 0; b < each; ++b) {
        EXPECT_NEAR(routes.alpha_s(a, b), alone.alpha_s(each - 1 - a, each - 1 - b), 1e-12);
      }
      EXPECT_GT(routes.alpha_s(a, each + a), routes.alpha_s(a, (a + 1) % each)) << machine;
    }
  }
}

TEST(DeviceWiring, IsAssumedWhereAGpuIsSharedOrNotKnown) {
  const DiscoveredHost host = recorded("eight-gpus-nvswitch");
  const Topology known = gpu_topology(two_of(host), job(2, 8));
  GpuPlaces shared = two_of(host);
  shared.gpu[1] = shared.gpu[0];
  GpuPlaces unknown = two_of(host);
  unknown.gpu[9] = -1;
  GpuPlaces apart = two_of(host);
  apart.reaches[1] = apart.reaches[16] = false;
  for (const GpuPlaces& places : {shared, unknown, apart}) {
    const Topology topology = gpu_topology(places, job(2, 8));
    EXPECT_FALSE(malformed(topology));
    EXPECT_LT(topology.nodes.size(), known.nodes.size());
    EXPECT_EQ(topology.world_size(), 16);
  }
}

TEST(DeviceWiring, RefusesWhatCannotBeAMachine) {
  GpuPlaces places = places_of(1, 2);
  const std::vector<std::string> uuids = {"GPU-a", "GPU-b"};
  const std::vector<std::string> said = {"{}", ""};
  EXPECT_THROW(learn_gpus(places, uuids, said), BootstrapError);
}

TEST(DeviceWiring, LevelsAreThoseOfEqualHostsInOrder) {
  EXPECT_EQ(gpu_levels(places_of(2, 8)), (std::vector<int>{8, 2}));
  GpuPlaces mixed = places_of(2, 2);
  mixed.host = {0, 1, 0, 1};
  EXPECT_TRUE(gpu_levels(mixed).empty());
  mixed.host = {0, 0, 0, 1};
  EXPECT_TRUE(gpu_levels(mixed).empty());
}

}  // namespace
}  // namespace chorus
