// The rate of a flow is read from arrivals that a busy machine has spoilt.
#include "topology/probing/steady_rate.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "topology/probing/probed_network.hpp"

namespace chorus::probing {
namespace {

constexpr double kRate = 25e6;
constexpr double kDuration = 0.04;
constexpr double kMessage = 16e3;

// Messages of a flow behind a token bucket of `burst` bytes, as a receiver sees them that is away
// from `away` to `back`.
std::vector<ArrivalSample> arrivals(double burst, double away, double back) {
  std::vector<ArrivalSample> samples;
  std::uint64_t bytes = 0;
  for (double sent = kMessage; sent < burst + kRate * kDuration; sent += kMessage) {
    double at = sent < burst ? sent / 1e9 : (sent - burst) / kRate;
    if (at > away && at < back) at = back;
    bytes += static_cast<std::uint64_t>(kMessage);
    samples.push_back({at, bytes});
  }
  return samples;
}

TEST(SteadyRate, DoesNotCountWhatATokenBucketLetsThroughAtOnce) {
  const double rate = steady_rate(arrivals(128e3, 1, 1), kDuration);
  EXPECT_NEAR(rate / kRate, 1, 0.01);
}

TEST(SteadyRate, IsNotMovedByAReceiverThatLosesItsCore) {
  for (double away = 0; away < 0.034; away += 0.003) {
    for (const double gap : {0.002, 0.006, 0.015}) {
      const double rate = steady_rate(arrivals(128e3, away, away + gap), kDuration);
      EXPECT_GT(rate / kRate, 0.85) << away << " s, for " << gap << " s";
      EXPECT_LT(rate / kRate, 1.25) << away << " s, for " << gap << " s";
    }
  }
}

// Flows that share a trunk take turns at random, by what a sender hands over at once, and a bucket
// lets through in the middle what the first of them left.
TEST(SteadyRate, OfFlowsThatTakeTurnsAddsUpToTheTrunks) {
  constexpr double kTrain = 64e3;
  double least = 10, most = 0, sum = 0;
  constexpr int kRuns = 100;
  for (unsigned seed = 0; seed < kRuns; ++seed) {
    std::mt19937 random(seed);
    std::vector<ArrivalSample> flows[4];
    for (auto& flow : flows) flow.push_back({0, 8000});  // all begin at once
    double now = 0;
    for (int train = 0; now < 2 * kDuration; ++train) {
      now += kTrain / (train < 4 ? kRate / 2 : train < 8 ? 4 * kRate : kRate);
      auto& flow = flows[random() % 4];
      for (double sent = 0; sent < kTrain; sent += kMessage) {
        flow.push_back({now, flow.back().bytes + static_cast<std::uint64_t>(kMessage)});
      }
    }
    double together = 0;
    for (const auto& flow : flows) together += steady_rate(flow, kDuration);
    least = std::min(least, together / kRate);
    most = std::max(most, together / kRate);
    sum += together / kRate;
  }
  EXPECT_NEAR(sum / kRuns, 1, 0.05);
  EXPECT_GT(least, 0.75);
  EXPECT_LT(most, 1.25);
}

// The first segment is lost: what follows waits in the kernel for the time that TCP takes to send
// it again, and is then there at once.
TEST(SteadyRate, OfAFlowThatWasHeldUpIsOverTheTimeInWhichItWasSent) {
  std::vector<ArrivalSample> samples = {{1, 0}};
  for (std::uint64_t i = 1; i <= 8; ++i)
    samples.push_back({1 + 1e-5 * static_cast<double>(i), i * 8192});
  constexpr double kSent = 0.2;
  EXPECT_DOUBLE_EQ(steady_rate(samples, kSent), 65536 / kSent);
  // A fast network brings as much in no time, and its flow ends there.
  EXPECT_GT(steady_rate(samples, kSent, 65536), 100 * 65536 / kSent);
}

TEST(SteadyRate, SaysNothingOfTooLittle) {
  EXPECT_EQ(steady_rate({}, kDuration), 0);
  const ArrivalSample one[] = {{1, 100}};
  EXPECT_EQ(steady_rate(one, kDuration), 0);
}

ProbedNetwork two_islands() {
  ProbedNetwork network;
  network.hosts = {"a", "b", "c", "d"};
  network.tree.out = network.tree.in = {1e8, 1e8, 1e8, 1e8};
  network.tree.groups = {{{2, 3}, 2e7, 3e7}};
  network.cable_alpha_s = {1e-5, 1e-5, 1e-5, 1e-5};
  network.trunk_alpha_s = {5e-6};
  return network;
}

TEST(ProbedNetwork, PutsEveryRankBehindItsHostsTrunk) {
  const std::vector<HostPart> parts = {{.host = 0, .ranks = {3}},
                                       {.host = 1, .ranks = {0}},
                                       {.host = 2, .ranks = {1, 4}},
                                       {.host = 3, .ranks = {2}}};
  const Topology topology = topology_of(two_islands(), parts);
  ASSERT_EQ(topology.world_size(), 5);
  const auto name = [&](Rank rank) {
    return topology
        .nodes[static_cast<std::size_t>(topology.rank_nodes[static_cast<std::size_t>(rank)])]
        .name;
  };
  EXPECT_EQ(name(3), "a/rank3");
  EXPECT_EQ(name(4), "c/rank4");
  int trunks = 0;
  for (const Topology::Link& link : topology.links) {
    if (link.type != "trunk") continue;
    ++trunks;
    EXPECT_EQ(link.provenance, Provenance::measured);
    EXPECT_DOUBLE_EQ(
        link.beta_s_per_byte,
        topology.nodes[static_cast<std::size_t>(link.src)].name == "network" ? 1 / 3e7 : 1 / 2e7);
  }
  EXPECT_EQ(trunks, 2);
}

TEST(ProbedNetwork, KeepsOfATrunkWhatAPartOfTheHostsStillCrosses) {
  const ProbedNetwork whole = two_islands();
  EXPECT_TRUE(restricted(whole, {"c", "d"}).tree.groups.empty());
  const ProbedNetwork part = restricted(whole, {"d", "c", "a"});
  ASSERT_EQ(part.tree.groups.size(), 1U);
  EXPECT_EQ(part.tree.groups[0].hosts, std::vector<int>{2});  // a, alone on its side
  EXPECT_EQ(part.tree.groups[0].out, 3e7);
}

TEST(ProbedNetwork, SharesLatenciesOutAmongCablesAndTrunks) {
  ProbedNetwork network = two_islands();
  std::vector<PairLatency> pairs;
  for (int a = 0; a < 4; ++a) {
    for (int b = a + 1; b < 4; ++b) {
      pairs.push_back({a, b, a < 2 && b >= 2 ? 50e-6 : 20e-6});
    }
  }
  fit_latencies(network, pairs);
  for (const double alpha_s : network.cable_alpha_s) EXPECT_NEAR(alpha_s, 10e-6, 1e-7);
  EXPECT_NEAR(network.trunk_alpha_s[0], 30e-6, 1e-7);
}

}  // namespace
}  // namespace chorus::probing
