#include "synth/composing/gateways.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "model/bounds/bounds.hpp"
#include "model/price/cost.hpp"
#include "model/schedule/contract.hpp"
#include "synth/packing.hpp"
#include "synth/plan.hpp"
#include "topology/discover/sources.hpp"

namespace chorus::synth {
namespace {

using enum CollectiveKind;

constexpr double kLarge = 16 << 20;

bool between_switches(const Topology& topology, int link) {
  const auto is_switch = [&](int node) {
    return topology.nodes[static_cast<std::size_t>(node)].kind == NodeKind::network_switch;
  };
  const Topology::Link& facts = topology.links[static_cast<std::size_t>(link)];
  return is_switch(facts.src) && is_switch(facts.dst);
}

/// The pairs that cross each link between switches.
std::map<int, std::set<std::pair<Rank, Rank>>> streams(const Schedule& schedule,
                                                       const Topology& topology) {
  const Routes routes(topology);
  std::map<int, std::set<std::pair<Rank, Rank>>> crossing;
  for (const Step& step : schedule.steps) {
    for (const Transfer& transfer : step) {
      for (const int link : routes.path(transfer.src, transfer.dst)) {
        if (between_switches(topology, link)) crossing[link].emplace(transfer.src, transfer.dst);
      }
    }
  }
  return crossing;
}

std::size_t most_streams(const Schedule& schedule, const Topology& topology) {
  std::size_t most = 0;
  for (const auto& [link, pairs] : streams(schedule, topology)) most = std::max(most, pairs.size());
  return most;
}

std::optional<Gatewayed> gatewayed(const Topology& topology) {
  return through_gateways(topology, Network(topology));
}

/// The edges left that cross from one island to another.
std::vector<std::pair<Rank, Rank>> left_across(const Topology& topology) {
  const Routes routes(topology);
  std::vector<std::pair<Rank, Rank>> across;
  const auto wiring = gatewayed(topology);
  if (!wiring) return across;
  for (const Edge& edge : wiring->network.edges()) {
    const std::vector<int>& path = routes.path(edge.src, edge.dst);
    if (std::any_of(path.begin(), path.end(),
                    [&](int link) { return between_switches(topology, link); })) {
      across.emplace_back(edge.src, edge.dst);
    }
  }
  return across;
}

TEST(Gateways, OnePairSpeaksBothWaysWhereItsCablesAreFasterThanTheTrunk) {
  const auto across = left_across(topology_from_name("pairs"));
  ASSERT_EQ(across.size(), 2u);
  EXPECT_EQ(across[0], std::pair(across[1].second, across[1].first));
}

TEST(Gateways, NeighbouringIslandsAloneSpeakToEachOther) {
  const auto across = left_across(topology_from_name("islands"));  // 0-3, 4-5, 6-7 in a row
  const auto island = [](Rank rank) { return rank < 4 ? 0 : rank < 6 ? 1 : 2; };
  ASSERT_EQ(across.size(), 4u);
  std::map<Rank, int> speaks;
  for (const auto& [src, dst] : across) {
    EXPECT_EQ(std::abs(island(src) - island(dst)), 1) << src << " to " << dst;
    ++speaks[src];
  }
  for (const auto& [rank, times] : speaks) EXPECT_EQ(times, 1) << "rank " << rank;
}

TEST(Gateways, AsManyPairsSpeakAsFillTheTrunk) {
  // Cables of 0.25 GB/s.
  EXPECT_EQ(left_across(topology_from_name("lan:4x4,trunk=0.5")).size(), 2u * 2u);
  EXPECT_EQ(left_across(topology_from_name("lan:4x4,trunk=0.6")).size(), 3u * 2u);
}

TEST(Gateways, ATrunkThatTakesEveryRankIsLeftAlone) {
  EXPECT_FALSE(gatewayed(topology_from_name("lan:4x4,trunk=1.2")));
  EXPECT_FALSE(gatewayed(topology_from_name("homo"))) << "there is no trunk";
  EXPECT_FALSE(gatewayed(topology_from_name("slow")));
  EXPECT_FALSE(gatewayed(topology_from_name("dgx1")));
}

TEST(Gateways, ATrunkWithoutALimitIsLeftAlone) {
  Topology topology = topology_from_name("pairs");
  for (Topology::Link& link : topology.links) link.beta_s_per_byte = 0;
  EXPECT_FALSE(gatewayed(topology));
}

TEST(Gateways, ASlowHostDoesNotSpeakForOthers) {
  // Rank 3 alone has a slow cable.
  for (const auto& [src, dst] : left_across(topology_from_name("lan:2x2,trunk=0.05,slow=0.025"))) {
    EXPECT_NE(src, 3);
    EXPECT_NE(dst, 3);
  }
}

/// Two leaves with two hosts each below a spine that has none.
Topology leaves_and_spine() {
  Topology topology;
  topology.name = "leaves and spine";
  for (const char* name : {"spine", "leaf0", "leaf1"}) {
    topology.nodes.push_back({name, NodeKind::network_switch, -1, {}});
  }
  const auto cable = [&](int a, int b, double gb_s) {
    topology.links.push_back({a, b, 1e-6, 1e-9 / gb_s, "ethernet", Provenance::declared});
    topology.links.push_back({b, a, 1e-6, 1e-9 / gb_s, "ethernet", Provenance::declared});
  };
  cable(1, 0, 1);
  cable(2, 0, 1);
  for (int host = 0; host < 4; ++host) {
    topology.nodes.push_back({"host" + std::to_string(host), NodeKind::host, -1, {}});
    topology.rank_nodes.push_back(3 + host);
    cable(3 + host, 1 + host / 2, 1);
  }
  return topology;
}

TEST(Gateways, ASwitchWithoutRanksIsNoIsland) {
  const auto across = left_across(leaves_and_spine());
  ASSERT_EQ(across.size(), 2u);
  EXPECT_NE(across[0].first / 2, across[0].second / 2);
}

TEST(Gateways, ARankOnTwoSwitchesMakesThemNoIslands) {
  Topology topology = leaves_and_spine();
  topology.links.push_back({3, 2, 1e-6, 1e-9, "ethernet", Provenance::declared});
  topology.links.push_back({2, 3, 1e-6, 1e-9, "ethernet", Provenance::declared});
  EXPECT_FALSE(gatewayed(topology));
}

TEST(Gateways, WhatIsNotConnectedHasNone) {
  Topology topology = topology_from_name("pairs");
  std::erase_if(topology.links, [&](const Topology::Link& link) {
    return topology.nodes[static_cast<std::size_t>(link.src)].name == "switch1" &&
           topology.nodes[static_cast<std::size_t>(link.dst)].name == "switch0";
  });
  ASSERT_FALSE(connected(Network(topology)));
  EXPECT_FALSE(gatewayed(topology));
}

/// The topology with each rank inside its host, behind an adapter, as probes find it.
Topology behind_adapters(Topology topology) {
  for (int& node : topology.rank_nodes) {
    const int host = node;
    const auto adapter = static_cast<int>(topology.nodes.size());
    const std::string name = topology.nodes[static_cast<std::size_t>(host)].name;
    topology.nodes.push_back({name + "/nic", NodeKind::nic, host, {}});
    for (Topology::Link& link : topology.links) {
      if (link.src == host) link.src = adapter;
      if (link.dst == host) link.dst = adapter;
    }
    topology.links.push_back({host, adapter, 0, 1e-10, "pcie", Provenance::table});
    topology.links.push_back({adapter, host, 0, 1e-10, "pcie", Provenance::table});
  }
  return topology;
}

TEST(Gateways, NobodyPassesTheirAdaptersInTheirPlace) {
  const Topology topology = behind_adapters(topology_from_name("islands"));
  const Network network(topology);
  for (const CollectiveKind kind : {all_gather, all_reduce, all_to_all}) {
    const auto found = gateways({topology, network, {kind, 0}, kLarge}, Budget{});
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(most_streams(found[0], topology), 1u) << name_of(kind);
  }
}

class GatewaySchedule : public ::testing::TestWithParam<std::tuple<std::string, CollectiveKind>> {};

TEST_P(GatewaySchedule, IsRightAndNearTheBoundWithOneStreamATrunk) {
  const auto& [name, kind] = GetParam();
  const Topology topology = topology_from_name(name);
  const Network network(topology);
  const auto found = gateways({topology, network, {kind, 0}, kLarge}, Budget{});
  ASSERT_EQ(found.size(), 1u);
  const auto fault = first_fault(found[0]);
  ASSERT_EQ(fault, std::nullopt) << *fault;
  EXPECT_EQ(most_streams(found[0], topology), 1u);
  const double bound_s = lower_bound(topology, {kind, 0}).seconds(kLarge);
  const double enough = kind == all_reduce ? 1.05 : 1.02;
  EXPECT_LE(simulate(found[0], topology, Routes(topology), kLarge).seconds, enough * bound_s);
}

INSTANTIATE_TEST_SUITE_P(
    Lans, GatewaySchedule,
    ::testing::Combine(::testing::Values("pairs", "islands", "lan:3x2x3x2,trunk=0.02"),
                       ::testing::Values(all_gather, broadcast, all_to_all, all_reduce)),
    [](const auto& param) {
      std::string name =
          std::get<0>(param.param) + "_" + std::string(name_of(std::get<1>(param.param)));
      std::ranges::replace_if(
          name, [](char c) { return std::isalnum(c) == 0; }, '_');
      return name;
    });

TEST(Gateways, PlansForLargeSizesHaveOneStreamATrunk) {
  const Topology topology = topology_from_name("islands");
  PlanOptions options;
  options.sizes = {static_cast<std::uint64_t>(kLarge)};
  options.kinds = {all_gather, reduce_scatter, all_to_all};
  const Planned planned = make_plan(topology, options, built_in_strategies(), Budget{});
  ASSERT_EQ(planned.choices.size(), 3u);
  for (const Choice& choice : planned.choices) {
    EXPECT_EQ(most_streams(choice.schedule, topology), 1u) << name_of(choice.kind);
    EXPECT_LE(choice.seconds, 1.03 * lower_bound(topology, {choice.kind, 0}).seconds(kLarge));
  }
}

TEST(LeastByCuts, IsTheBandwidthBound) {
  for (const char* name : {"pairs", "slow", "islands", "dgx1", "2*dgx-a100"}) {
    const Topology topology = topology_from_name(name);
    for (const CollectiveKind kind : {all_gather, reduce_scatter, broadcast, reduce}) {
      const double bound = lower_bound(topology, {kind, 0}).seconds_per_byte;
      const double cuts = least_by_cuts(topology, {kind, 0});
      EXPECT_LE(cuts, bound * (1 + 1e-9)) << name << " " << name_of(kind);
      EXPECT_GE(cuts, bound * 0.9) << name << " " << name_of(kind);
    }
    EXPECT_EQ(least_by_cuts(topology, {all_to_all, 0}), 0);
  }
}

}  // namespace
}  // namespace chorus::synth
