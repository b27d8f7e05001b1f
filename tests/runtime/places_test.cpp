// Where the ranks of a host are, and what that makes of its Topology, for any host.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "chorus/error.hpp"
#include "model/json/json.hpp"
#include "model/price/cost.hpp"
#include "tests/runtime/drawn_rates.hpp"
#include "topology/discover/cpu_place.hpp"
#include "topology/discover/discover.hpp"
#include "topology/discover/discovered_host.hpp"
#include "topology/discover/sources.hpp"
#include "topology/import/record.hpp"

namespace chorus::testing {
namespace {

using ::testing::HasSubstr;
using Levels = std::vector<int>;

/// Of ranks bound to the first, then the next, … core of the machine.
std::vector<CpuPlace> bound_in_order(const DiscoveredHost& host, int ranks) {
  std::vector<CpuPlace> places;
  const int all = static_cast<int>(host.units.size());
  for (int r = 0; r < ranks; ++r) places.push_back(place_of(host, std::vector{r * all / ranks}));
  return places;
}

TEST(Places, OfARecordedMachineWithTwoSockets) {
  const DiscoveredHost host = host_from_record(fmt::format("{}/machines/two-sockets", CHORUS_DATA));
  ASSERT_EQ(host.units.size(), 8U);
  const auto apart = [&](int a, int b) { return distance(host.units.at(a), host.units.at(b)); };
  EXPECT_EQ(apart(0, 1), Distance::siblings);
  EXPECT_EQ(apart(0, 2), Distance::cache);
  EXPECT_EQ(apart(1, 4), Distance::packages);
  EXPECT_EQ(place_of(host, std::vector{0, 1}).core, host.units.at(0).core);
  const CpuPlace socket = place_of(host, std::vector{4, 5, 6, 7});
  EXPECT_EQ(socket.core, -1);
  EXPECT_EQ(socket.package, host.units.at(4).package);
  EXPECT_EQ(place_of(host, std::vector{0, 4}), CpuPlace{}) << "both sockets";
  EXPECT_EQ(place_of(host, std::vector{0, 99}), CpuPlace{}) << "a unit that nobody listed";
  EXPECT_EQ(numa_of_interface(host, "ens1f0"), 1) << "behind the second socket's PCIe";
  EXPECT_EQ(numa_of_interface(host, "eth7"), -1);
}

TEST(Places, MakeLevelsOfCachesAndPackages) {
  const struct {
    const char* machine;
    int ranks;
    Levels levels;
  } kCases[] = {
      {"pack:2 l3:1 core:8 pu:1", 16, {8, 2}}, {"pack:2 l3:4 core:4 pu:2", 32, {4, 4, 2}},
      {"pack:8 l3:1 core:8 pu:1", 64, {8, 8}}, {"pack:8 l3:2 core:8 pu:1", 128, {8, 2, 8}},
      {"pack:1 l3:1 core:4 pu:1", 4, {4}},     {"pack:2 l3:1 core:4 pu:1", 2, {2}},
      {"pack:2 l3:2 core:3 pu:1", 4, {2, 2}},  {"pack:2 l3:1 core:5 pu:1", 7, {7}}};
  for (const auto& each : kCases) {
    const DiscoveredHost host = host_from_synthetic(each.machine);
    EXPECT_EQ(levels_inside(bound_in_order(host, each.ranks)), each.levels) << each.machine;
  }
  std::vector<CpuPlace> dealt = bound_in_order(host_from_synthetic("pack:2 l3:1 core:2 pu:1"), 4);
  std::swap(dealt[1], dealt[2]);
  EXPECT_EQ(levels_inside(dealt), Levels{4}) << "ranks dealt out to the packages by turns";
  EXPECT_EQ(levels_inside(std::vector<CpuPlace>(6)), Levels{6}) << "nothing is known";
}

TEST(Places, LevelsMultiplyToTheRanksWhateverTheMachine) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const int ranks = 1 + static_cast<int>(seed % 40);
    int product = 1;
    for (const int size : levels_inside(drawn_places(seed, ranks))) product *= size;
    EXPECT_EQ(product, ranks) << seed;
  }
}

TEST(Places, TheSpanIsThatOfTheFarthestTwo) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const std::vector<CpuPlace> places = drawn_places(seed, 2 + static_cast<int>(seed % 9));
    Distance farthest = Distance::siblings;
    for (const CpuPlace& a : places) {
      for (const CpuPlace& b : places) {
        if (&a != &b) farthest = std::max(farthest, distance(a, b));
      }
    }
    EXPECT_EQ(span_of(places), farthest) << seed;
  }
}

TEST(DiscoveredHost, ComesBackAsItWasWritten) {
  for (const char* machine : {"pack:2 l3:2 core:2 pu:2", "numa:4 core:3 pu:1", "core:1 pu:1"}) {
    const DiscoveredHost host = host_from_synthetic(machine);
    EXPECT_EQ(discovered_host_from_json(to_json(host), "text"), host) << machine;
  }
}

TEST(DiscoveredHost, IsRefusedByItsPlace) {
  const std::string text = to_json(host_from_synthetic("pack:2 core:2 pu:1"));
  const auto spoilt = [&](std::string_view what, std::string_view by) {
    std::string other = text;
    return other.replace(other.find(what), what.size(), by);
  };
  const std::pair<std::string, const char*> faults[] = {
      {spoilt("chorus-machine", "chorus-host"), "chorus-machine"},
      {spoilt("\"version\": 1", "\"version\": 7"), "version"},
      {spoilt("hwloc:pack:2 core:2 pu:1", ""), "/machine: must name the machine"},
      {spoilt("[0, 0,", "[0,"), "/units/0: must be [unit, core, cache, NUMA node, package]"},
      {spoilt("[1, ", "[0, "), "/units/1: is listed twice"},
      {spoilt("[0, 0,", "[0, -2,"), "/units/0/1"},
      {spoilt("\"gpus\": []", "\"gpus\": [\"GPU-1\"]"), "/gpus: must be one for each rank"},
      {spoilt("\"numa0\", \"kind\": \"numa\"", "\"numa0\", \"kind\": \"moon\""), "/topology/nodes"},
      {text.substr(0, text.size() / 2), "line"}};
  for (const auto& [fault, complaint] : faults) {
    try {
      static_cast<void>(discovered_host_from_json(fault, "machine.json"));
      ADD_FAILURE() << complaint;
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), ::testing::StartsWith("machine.json: "));
      EXPECT_THAT(error.what(), HasSubstr(complaint));
    }
  }
}

/// The way of a message between two ranks of one host.
struct Way {
  double alpha_s = 0;
  double beta_s_per_byte = 0;
};
Way way_of(const Topology& topology, const Routes& routes, Rank a, Rank b) {
  Way way{.alpha_s = routes.alpha_s(a, b)};
  for (const int link : routes.path(a, b)) {
    way.beta_s_per_byte = std::max(way.beta_s_per_byte,
                                   topology.links[static_cast<std::size_t>(link)].beta_s_per_byte);
  }
  return way;
}

// Every pair of ranks meets in what is nearest to both, at what was measured of cores so near.
TEST(PlacedTopology, MessagesTakeWhatCoresOfTheirDistanceTake) {
  int farther = 0;
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    const int ranks = 2 + static_cast<int>(seed % 15);
    const HostRates rates = drawn_rates(seed, 1 + static_cast<int>(seed % 4));
    const std::vector<CpuPlace> places = drawn_places(seed, ranks);
    const Topology topology = job_topology({.hosts = seed % 3 == 0 ? 2 : 1,
                                            .ranks_per_host = ranks,
                                            .cores_per_host = ranks,
                                            .rates = {rates},
                                            .places = {places}});
    ASSERT_FALSE(malformed(topology)) << *malformed(topology);
    const Routes routes(topology);
    for (Rank a = 0; a < ranks; ++a) {
      for (Rank b = 0; b < ranks; ++b) {
        if (a == b) continue;
        const Distance apart =
            distance(places[static_cast<std::size_t>(a)], places[static_cast<std::size_t>(b)]);
        const Way way = way_of(topology, routes, a, b);
        EXPECT_NEAR(way.alpha_s, pair_at(rates, apart).line_s, 1e-12)
            << fmt::format("seed {}, ranks {} and {}", seed, a, b);
        constexpr double kSlot = 131'072;
        const double stage_s =
            seconds_together(rates, &HostRates::Sample::stage_s, kSlot, apart) / kSlot;
        const double fetch_s =
            seconds_together(rates, &HostRates::Sample::fetch_s, kSlot, apart) / kSlot;
        const double kernel_s =
            seconds_together(rates, &HostRates::Sample::kernel_s, kSlot, apart) / kSlot;
        EXPECT_NEAR(way.beta_s_per_byte,
                    std::max(std::min(stage_s, kernel_s), std::min(fetch_s, kernel_s)),
                    1e-6 * way.beta_s_per_byte)
            << fmt::format("seed {}, ranks {} and {}", seed, a, b);
        farther += apart != Distance::packages ? 1 : 0;
      }
    }
  }
  EXPECT_GT(farther, 500);
}

// What is not known does not count: the Topology is that of ranks of which nothing is known.
TEST(PlacedTopology, WithoutPlacesIsOneHost) {
  const JobShape shape{
      .hosts = 2, .ranks_per_host = 3, .cores_per_host = 4, .rates = {drawn_rates(1)}};
  JobShape nowhere = shape;
  nowhere.places = {std::vector<CpuPlace>(3)};
  EXPECT_EQ(job_topology(nowhere), job_topology(shape));
}

// Messages of the far package cross to the adapter; those between ranks never take that way.
TEST(PlacedTopology, TheAdapterHangsBesideItsNumaNode) {
  const DiscoveredHost host = host_from_record(fmt::format("{}/machines/two-sockets", CHORUS_DATA));
  const HostRates rates = drawn_rates(5, 4);
  const Topology topology =
      job_topology({.hosts = 2,
                    .ranks_per_host = 4,
                    .cores_per_host = 8,
                    .rates = {rates},
                    .places = {bound_in_order(host, 4)},
                    .adapter_numas = std::vector<int>(2, numa_of_interface(host, "ens1f0"))});
  const auto nic = std::ranges::find(topology.nodes, "host0/nic", &Topology::Node::name);
  ASSERT_NE(nic, topology.nodes.end());
  EXPECT_EQ(topology.nodes[static_cast<std::size_t>(nic->parent)].name, "host0/cpu1")
      << "which holds the same ranks as its NUMA node";
  const Routes routes(topology);
  EXPECT_GT(routes.alpha_s(0, 4), routes.alpha_s(2, 6)) << "rank 2 sits beside the adapter";
  for (const int link : routes.path(0, 2)) {
    EXPECT_NE(topology.links[static_cast<std::size_t>(link)].type, "socket");
  }
}

}  // namespace
}  // namespace chorus::testing
