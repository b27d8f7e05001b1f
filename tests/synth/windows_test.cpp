#include "synth/exact/windows.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "model/cost.hpp"
#include "random_graphs.hpp"
#include "synth/sketch/timing.hpp"
#include "topology/sources.hpp"

namespace chorus::synth {
namespace {

using Job = TimingWindow::Job;

/// One after the other on resource 0, in the order given.
Job job(int chunk, double ready_s, double busy_s, double tail_s, double begin_s) {
  return {.edge = 0,
          .chunk = chunk,
          .ready_s = ready_s,
          .length_s = busy_s,
          .tail_s = tail_s,
          .uses = {{0, busy_s, 0}},
          .after = {},
          .begin_s = begin_s};
}

double end_of(const TimingWindow& window, const Retimed& retimed) {
  double end_s = 0;
  for (std::size_t j = 0; j < window.jobs.size(); ++j) {
    end_s = std::max(end_s, retimed.begin_s[j] + window.jobs[j].length_s + window.jobs[j].tail_s);
  }
  return end_s;
}

TEST(Window, WaitsForWhatIsLateButUrgent) {
  // Whoever begins what is there first makes the urgent job wait: 10 + 1 + 20. Waiting for 1 s
  // costs nothing: 1 + 1 + 20.
  TimingWindow window;
  window.jobs = {job(0, 0, 10, 0, 0), job(1, 1, 1, 20, 10)};
  window.end_s = 31;
  window.bound_s = 11;
  const auto retimed = exact::solve_window(window, Effort{});
  ASSERT_TRUE(retimed.has_value());
  EXPECT_NEAR(end_of(window, *retimed), 22, 0.1);
  EXPECT_GE(retimed->begin_s[0], retimed->begin_s[1] + 1 - 1e-3);
}

TEST(Window, SaysNothingWhereNothingIsToBeGained) {
  TimingWindow window;
  window.jobs = {job(0, 0, 10, 0, 0), job(1, 0, 10, 0, 10)};
  window.end_s = 20;
  window.bound_s = 10;  // less than true: it has to find out
  EXPECT_FALSE(exact::solve_window(window, Effort{}).has_value());
}

TEST(Window, SendsTogetherWhatSavesMessages) {
  // Each alone takes 5 s and 1 s of bytes: 12 s. Together 5 + 2, though the first waits for 2 s.
  TimingWindow window;
  window.jobs = {job(0, 0, 6, 0, 0), job(1, 2, 6, 0, 6)};
  for (Job& one : window.jobs) {
    one.uses.front().message_s = 5;
    one.length_s = 6;
  }
  window.end_s = 12;
  window.bound_s = 2;
  // In this model the second ends when its own bytes are through: a begin 6 s after the first's
  // head is saved 5 s only behind it. A third job feels it.
  window.jobs.push_back(job(2, 0, 6, 0, 12));
  window.jobs.back().uses.front().message_s = 5;
  window.end_s = 18;
  const auto retimed = exact::solve_window(window, Effort{});
  ASSERT_TRUE(retimed.has_value());
  EXPECT_LT(end_of(window, *retimed), 18 * 0.95);
  EXPECT_TRUE(
      std::any_of(retimed->with.begin(), retimed->with.end(), [](int i) { return i >= 0; }));
}

TEST(Window, GivesTheSameAnswerAgain) {
  TimingWindow window;
  window.jobs = {job(0, 0, 10, 0, 0), job(1, 1, 1, 20, 10), job(2, 0, 3, 5, 11)};
  window.end_s = 31;
  const auto first = exact::solve_window(window, Effort{});
  const auto second = exact::solve_window(window, Effort{});
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->begin_s, second->begin_s);
  EXPECT_EQ(first->with, second->with);
}

/// Everybody to everybody over shortest ways.
Spread exchange(const Network& network) {
  const int n = network.world_size();
  Spread spread{{CollectiveKind::all_to_all}, n * n, {}};
  for (Rank origin = 0; origin < n; ++origin) {
    std::vector<int> via(static_cast<std::size_t>(n), -1);
    std::vector<Rank> queue = {origin};
    for (std::size_t i = 0; i < queue.size(); ++i) {
      for (const int e : network.out(queue[i])) {
        const Rank dst = network.edges()[static_cast<std::size_t>(e)].dst;
        if (dst == origin || via[static_cast<std::size_t>(dst)] >= 0) continue;
        via[static_cast<std::size_t>(dst)] = e;
        queue.push_back(dst);
      }
    }
    for (Rank to = 0; to < n; ++to) {
      std::vector<Hop> way;
      for (Rank rank = to; rank != origin;) {
        const Edge& edge =
            network.edges()[static_cast<std::size_t>(via[static_cast<std::size_t>(rank)])];
        way.push_back({edge.src, edge.dst, origin * n + to});
        rank = edge.src;
      }
      spread.hops.insert(spread.hops.end(), way.rbegin(), way.rend());
    }
  }
  return spread;
}

/// All that enters a rank, and all that leaves it, goes through one port.
void share_ports(Topology& topology) {
  for (int node = 0; node < topology.world_size(); ++node) {
    Topology::PortGroup in{"in", {}, 2e-10, 0};
    Topology::PortGroup out{"out", {}, 2e-10, 0};
    for (std::size_t l = 0; l < topology.links.size(); ++l) {
      if (topology.links[l].src == node) out.links.push_back(static_cast<int>(l));
      if (topology.links[l].dst == node) in.links.push_back(static_cast<int>(l));
    }
    topology.port_groups.push_back(in);
    topology.port_groups.push_back(out);
  }
}

TEST(Timing, IsNeverWorseThanGreedyAndSometimesBetter) {
  int better = 0;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    Topology topology = test::random_graph(6, seed);
    share_ports(topology);
    const Network network(topology);
    Timing timing(network, exchange(network), 20'000);
    const double greedy_s = timing.seconds();
    EXPECT_EQ(first_fault(timing.schedule("greedy")), std::nullopt);
    if (timing.improve(exact::solve_window, Effort{})) {
      EXPECT_EQ(first_fault(timing.schedule("exact")), std::nullopt);
      if (timing.seconds() < greedy_s * 0.999) ++better;
    }
    EXPECT_LE(timing.seconds(), greedy_s * (1 + 1e-9));
    RecordProperty("seed " + std::to_string(seed), std::to_string(timing.seconds() / greedy_s));
  }
  EXPECT_GE(better, 1);
}

TEST(Timing, JoinsChunksWhereMessagesCost) {
  // Cores hand messages over at a price; everything joined stays a right schedule.
  Topology topology = topology_from_name("ring:4");
  Topology::PortGroup cores{"cores", {}, 0, 3e-6};
  for (std::size_t l = 0; l < topology.links.size(); ++l)
    cores.links.push_back(static_cast<int>(l));
  topology.port_groups.push_back(cores);
  const Network network(topology);
  Spread spread = exchange(network);
  Timing timing(network, spread, 1000);
  const double before_s = timing.seconds();
  EXPECT_TRUE(timing.improve(exact::solve_window, Effort{}));
  EXPECT_LT(timing.seconds(), before_s);
  const Schedule schedule = timing.schedule("joined");
  EXPECT_EQ(first_fault(schedule), std::nullopt);
}

}  // namespace
}  // namespace chorus::synth
