#include "synth/exact/exact.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "chorus/error.hpp"
#include "model/bounds/bounds.hpp"
#include "model/schedule/contract.hpp"
#include "synth/exact/automorphisms.hpp"
#include "synth/exact/round_network.hpp"
#include "topology/discover/builder.hpp"
#include "topology/discover/sources.hpp"

namespace chorus::synth::exact {
namespace {

using Kind = CollectiveKind;

Synthesizer synthesizer(const std::string& name, Kind kind, Rank root = 0, Settings settings = {}) {
  return {topology_from_name(name), {kind, root}, std::move(settings)};
}

/// Steps, rounds and correctness of what was found are what was asked for.
void expect_kept(const Result& result, const Instance& instance, Kind kind) {
  ASSERT_EQ(result.answer, Answer::found);
  EXPECT_EQ(first_fault(result.schedule), std::nullopt);
  EXPECT_EQ(result.schedule.collective.kind, kind);
  const int blocks = num_blocks(kind, result.schedule.world_size);
  const int unit = kind == Kind::all_to_all ? result.schedule.world_size : 1;
  EXPECT_EQ(result.schedule.num_chunks, instance.chunks / unit * blocks);
  EXPECT_LE(result.schedule.steps.size(), static_cast<std::size_t>(instance.steps));
  ASSERT_EQ(result.schedule.steps.size(), result.rounds.size());
  int rounds = 0;
  for (const int of_step : result.rounds) rounds += of_step;
  EXPECT_LE(rounds, instance.rounds);
}

/// cost() knows nothing of rounds: a step of r rounds takes r chunks' time of the slowest link.
void expect_cost(const Result& result, const std::string& name, double gb_s) {
  const Topology topology = topology_from_name(name);
  const Cost price = cost(result.schedule, topology, Routes(topology));
  int rounds = 0;
  for (const int of_step : result.rounds) rounds += of_step;
  EXPECT_NEAR(price.beta_s_per_byte, rounds * chunk_bytes(result.schedule, 1) * 1e-9 / gb_s, 1e-15);
}

// What SCCL publishes for the DGX-1 (PPoPP'21, tables 4 and 5), found and refuted.
TEST(Exact, AnswersTheInstancesOfTheDgx1AsPublished) {
  const std::vector<std::tuple<Kind, Instance, Answer>> known = {
      {Kind::all_gather, {1, 2, 2}, Answer::found},
      {Kind::all_gather, {2, 2, 3}, Answer::found},
      {Kind::all_gather, {3, 2, 4}, Answer::impossible},
      {Kind::all_gather, {6, 2, 7}, Answer::impossible},
      {Kind::all_gather, {6, 3, 7}, Answer::found},
      {Kind::all_gather, {6, 3, 6}, Answer::impossible},
      {Kind::all_gather, {6, 1, 7}, Answer::impossible},
      {Kind::reduce_scatter, {6, 3, 7}, Answer::found},
      {Kind::reduce_scatter, {3, 2, 4}, Answer::impossible},
      {Kind::broadcast, {6, 3, 5}, Answer::found},
      {Kind::reduce, {6, 3, 3}, Answer::found},
      {Kind::gather, {6, 3, 7}, Answer::found},
      {Kind::scatter, {6, 3, 7}, Answer::found},
      {Kind::all_to_all, {8, 2, 3}, Answer::found},
      {Kind::all_to_all, {8, 2, 2}, Answer::impossible},
      {Kind::all_to_all, {24, 2, 8}, Answer::found},
      {Kind::all_to_all, {24, 8, 8}, Answer::found},
      {Kind::all_reduce, {8, 4, 4}, Answer::found},
      {Kind::all_reduce, {48, 6, 14}, Answer::found},
  };
  for (const auto& [kind, instance, answer] : known) {
    SCOPED_TRACE(::testing::Message() << name_of(kind) << " (" << instance.chunks << ","
                                      << instance.steps << "," << instance.rounds << ")");
    const Result result = synthesizer("dgx1", kind).solve(instance, {});
    EXPECT_EQ(result.answer, answer);
    if (answer != Answer::found) continue;
    expect_kept(result, instance, kind);
    expect_cost(result, "dgx1", 25);
  }
}

// A symmetry must not be needed: what it finds exists without it, what it misses is not refuted.
TEST(Exact, AnswersAlikeWithAndWithoutSymmetry) {
  Settings plain;
  plain.symmetry = false;
  for (const Instance& instance :
       {Instance{1, 2, 2}, Instance{2, 2, 3}, Instance{3, 2, 4}, Instance{3, 3, 4}}) {
    const Result with = synthesizer("dgx1", Kind::all_gather).solve(instance, {});
    const Result without = synthesizer("dgx1", Kind::all_gather, 0, plain).solve(instance, {});
    EXPECT_EQ(with.answer, without.answer);
    EXPECT_EQ(without.symmetry, 1u);
    if (with.answer == Answer::found) {
      EXPECT_EQ(with.symmetry, 4u);
    }
  }
}

TEST(Exact, SaysWhetherABoundOrTheSolverRefutes) {
  Synthesizer dgx1 = synthesizer("dgx1", Kind::all_gather);
  EXPECT_EQ(dgx1.least_steps(), 2);
  EXPECT_NEAR(dgx1.least_rounds_per_chunk(), 7.0 / 6, 1e-9);
  EXPECT_EQ(dgx1.solve({6, 1, 7}, {}).proof, Proof::bound);  // diameter 2
  EXPECT_EQ(dgx1.solve({6, 3, 6}, {}).proof, Proof::bound);  // 7/6 rounds per chunk
  EXPECT_EQ(dgx1.solve({6, 2, 7}, {}).proof, Proof::unsatisfiable);
}

TEST(Exact, SolvesEveryRootOfRootedCollectives) {
  for (const Kind kind : {Kind::broadcast, Kind::reduce, Kind::gather, Kind::scatter}) {
    for (Rank root = 0; root < 8; ++root) {
      const Instance instance{2, 2, 4};
      const Result result = synthesizer("dgx1", kind, root).solve(instance, {});
      expect_kept(result, instance, kind);
      EXPECT_EQ(result.schedule.collective.root, root);
    }
  }
}

// Schedules of 64 ranks that are optimal in steps and in bytes: one root solved, 63 translated.
TEST(Exact, SolvesSymmetricNetworksOf64Ranks) {
  const std::vector<std::tuple<std::string, Instance, std::size_t>> known = {
      {"ring:64", {2, 32, 63}, 64},
      {"torus:8x8", {4, 8, 63}, 64},
      {"torus:4x4x4", {6, 6, 63}, 64},
      {"hypercube:6", {6, 6, 63}, 64},
  };
  for (const auto& [name, instance, least] : known) {
    SCOPED_TRACE(name);
    const Result result = synthesizer(name, Kind::all_gather).solve(instance, {});
    expect_kept(result, instance, Kind::all_gather);
    expect_cost(result, name, 1);
    EXPECT_GE(result.symmetry, least);
    Synthesizer again = synthesizer(name, Kind::all_gather);
    EXPECT_EQ(again.solve({instance.chunks, instance.steps - 1, instance.rounds}, {}).proof,
              Proof::bound);
    EXPECT_EQ(again.solve({instance.chunks, instance.steps, instance.rounds - 1}, {}).proof,
              Proof::bound);
  }
}

TEST(Exact, SameQuestionSameSchedule) {
  const std::vector<std::pair<Kind, Instance>> questions = {{Kind::all_gather, {6, 3, 7}},
                                                            {Kind::all_to_all, {24, 8, 8}},
                                                            {Kind::all_reduce, {16, 4, 6}}};
  for (const auto& [kind, instance] : questions) {
    const Result once = synthesizer("dgx1", kind).solve(instance, {});
    const Result again = synthesizer("dgx1", kind).solve(instance, {});
    ASSERT_EQ(once.answer, Answer::found);
    EXPECT_EQ(once.schedule, again.schedule);
  }
}

TEST(Exact, WalksTheFrontierOfTheDgx1WithProofs) {
  Synthesizer dgx1 = synthesizer("dgx1", Kind::all_gather);
  const Frontier frontier = dgx1.pareto({});
  EXPECT_EQ(frontier.most_chunks, 6);
  EXPECT_TRUE(frontier.complete);
  ASSERT_EQ(frontier.points.size(), 2u);
  const Point& quick = frontier.points[0];
  EXPECT_EQ(quick.instance, (Instance{2, 2, 3}));
  EXPECT_EQ(quick.steps_optimal, Proof::bound);
  EXPECT_EQ(quick.rounds_optimal, Proof::unsatisfiable);
  const Point& wide = frontier.points[1];
  EXPECT_EQ(wide.instance, (Instance{6, 3, 7}));
  EXPECT_EQ(wide.steps_optimal, Proof::unsatisfiable);
  EXPECT_EQ(wide.rounds_optimal, Proof::bound);
  EXPECT_NEAR(wide.bandwidth_share, 1, 1e-9);
  for (const Point& point : frontier.points) {
    EXPECT_EQ(first_fault(point.schedule), std::nullopt);
    EXPECT_NEAR(point.cost.alpha_s, point.instance.steps * 0.7e-6, 1e-12);
  }
  const double bound =
      lower_bound(topology_from_name("dgx1"), {Kind::all_gather, 0}).seconds_per_byte;
  EXPECT_NEAR(wide.cost.beta_s_per_byte, bound, 1e-6 * bound);
}

TEST(Exact, FrontiersOfOtherCollectivesReachTheirBounds) {
  for (const Kind kind : {Kind::all_to_all, Kind::reduce_scatter, Kind::all_reduce}) {
    SCOPED_TRACE(name_of(kind));
    Synthesizer ring = synthesizer("ring:6", kind);
    Walk walk;
    walk.most_chunks = 12;
    walk.most_steps = 12;
    const Frontier frontier = ring.pareto({}, walk);
    ASSERT_FALSE(frontier.points.empty());
    for (std::size_t i = 1; i < frontier.points.size(); ++i) {
      EXPECT_GT(frontier.points[i].instance.steps, frontier.points[i - 1].instance.steps);
      EXPECT_GT(frontier.points[i].bandwidth_share, frontier.points[i - 1].bandwidth_share);
    }
    for (const Point& point : frontier.points) {
      EXPECT_EQ(first_fault(point.schedule), std::nullopt);
      EXPECT_LE(point.bandwidth_share, 1 + 1e-9);
    }
    EXPECT_NEAR(frontier.points.back().bandwidth_share, 1, 1e-9);
  }
}

// The middle of a mesh is nearer to all than its corners: a chunk that has been reduced there goes
// out again while others still come in. The halves one after the other take twice the diameter, 8
// steps, and 8/9 of a round per chunk; along trees 7 or 8 steps and 5/6.
TEST(Exact, AllReduceAlongTreesBeatsItsHalvesOnAMesh) {
  for (const Instance& instance : {Instance{1, 4, 4}, Instance{8, 7, 7}, Instance{12, 8, 10}}) {
    const Result direct = synthesizer("mesh:3x3", Kind::all_reduce).solve(instance, {});
    expect_kept(direct, instance, Kind::all_reduce);
    expect_cost(direct, "mesh:3x3", 1);
  }
}

/// Four ranks around a switch; rank 0's port is three times as fast as the others', and 1 and 2
/// share a trunk.
Topology uneven() {
  TopologyBuilder builder("uneven");
  std::vector<int> hosts;
  for (int i = 0; i < 4; ++i) {
    hosts.push_back(builder.node("h" + std::to_string(i), NodeKind::host));
    builder.rank(hosts.back());
  }
  const int hub = builder.node("switch", NodeKind::network_switch);
  std::vector<std::pair<int, int>> ports;
  for (int i = 0; i < 4; ++i) {
    ports.push_back(builder.both_ways(hosts[i], hub, {i == 0 ? 3.0 : 1.0, 1, "cable"}));
  }
  builder.group("trunk out", {ports[1].first, ports[2].first}, 1);
  builder.group("trunk in", {ports[1].second, ports[2].second}, 1);
  return builder.take();
}

TEST(RoundNetwork, CountsWhatSpeedsAndSharedPortsAllow) {
  const RoundNetwork network = in_rounds(Network(uneven()));
  EXPECT_EQ(network.ways.size(), 12u);
  EXPECT_NEAR(network.beta_s_per_byte, 1e-9, 1e-18);
  // Both directions of ports 0 and 3, and of the trunk, which implies ports 1 and 2.
  ASSERT_EQ(network.limits.size(), 6u);
  int fast = 0;
  for (const Limit& limit : network.limits) {
    if (limit.capacity(1) == 3) ++fast;
    EXPECT_EQ(limit.capacity(4), 4 * limit.capacity(1));
  }
  EXPECT_EQ(fast, 2);
  // Speeds of 3 : 2 in rounds of the slower: three chunks in two rounds.
  Limit odd{"", 1.5, {}};
  EXPECT_EQ(odd.capacity(1), 1);
  EXPECT_EQ(odd.capacity(2), 3);
}

TEST(Exact, HonoursSharedPortsAndUnequalSpeeds) {
  // Ranks 1 and 2 together take in one chunk a round: 4 chunks that one of them lacks (each needs
  // those of 0 and 3, and of the other) are 6 crossings, so 6 rounds.
  const Topology topology = uneven();
  Synthesizer gather(topology, {Kind::all_gather, 0});
  EXPECT_NEAR(gather.least_rounds_per_chunk(), 6, 1e-6);
  EXPECT_EQ(gather.solve({1, 2, 5}, {}).proof, Proof::bound);
  const Result result = gather.solve({1, 2, 6}, {});
  expect_kept(result, {1, 2, 6}, Kind::all_gather);
  const Cost price = cost(result.schedule, topology, Routes(topology));
  EXPECT_NEAR(price.beta_s_per_byte, 6 * 0.25e-9, 1e-15);
}

TEST(Exact, UsesOnlyTheEdgesItMay) {
  Settings settings;
  settings.use = [](const Edge& edge) { return edge.beta_s_per_byte < 3e-11; };  // double links
  Synthesizer thin = synthesizer("dgx1", Kind::all_gather, 0, settings);
  const Result result = thin.solve({1, thin.least_steps(), 20}, {});
  ASSERT_EQ(result.answer, Answer::found);
  const Network network(topology_from_name("dgx1"));
  for (const Step& step : result.schedule.steps) {
    for (const Transfer& transfer : step) {
      const Edge& edge =
          network.edges()[static_cast<std::size_t>(*network.edge(transfer.src, transfer.dst))];
      EXPECT_LT(edge.beta_s_per_byte, 3e-11);
    }
  }
}

TEST(Automorphisms, OfKnownNetworksAreCounted) {
  const std::vector<std::pair<std::string, double>> known = {
      {"dgx1", 4},          {"ring:5", 10},         {"ring:64", 128},    {"hypercube:3", 48},
      {"hypercube:4", 384}, {"hypercube:6", 46080}, {"torus:8x8", 512},  {"torus:4x4", 384},
      {"mesh:3x3", 8},      {"mesh:2x3", 4},        {"dgx-a100", 40320}, {"mi300x", 40320},
  };
  for (const auto& [name, order] : known) {
    SCOPED_TRACE(name);
    const RoundNetwork network = in_rounds(Network(topology_from_name(name)));
    const Automorphisms found = automorphisms(network);
    EXPECT_TRUE(found.complete);
    EXPECT_EQ(found.order, order);
    for (const Permutation& generator : found.generators) {
      EXPECT_TRUE(is_automorphism(network, generator));
    }
    if (order > 1000) continue;
    EXPECT_EQ(elements(found.generators, network.world_size, 5000).size(), order);
  }
  const RoundNetwork network = in_rounds(Network(uneven()));
  EXPECT_EQ(automorphisms(network).order, 2);  // the two on the trunk
}

TEST(Automorphisms, PromisingGroupsAreGroups) {
  const RoundNetwork network = in_rounds(Network(topology_from_name("torus:4x4")));
  const Automorphisms all = automorphisms(network);
  const auto groups = promising_groups(network, all, -1, 4);
  ASSERT_FALSE(groups.empty());
  EXPECT_EQ(groups.front().size(), 64u);  // 16 translations, 4 rotations
  for (const auto& group : groups) {
    EXPECT_TRUE(std::is_sorted(group.front().begin(), group.front().end()));
    EXPECT_EQ(elements(group, network.world_size, 1000).size(), group.size());
    for (const Permutation& element : group) EXPECT_TRUE(is_automorphism(network, element));
  }
}

/// No solver we know has answered it without symmetry.
Result ask_something_hard(const Budget& budget) {
  Settings plain;
  plain.symmetry = false;
  return synthesizer("hypercube:5", Kind::all_gather, 0, plain).solve({5, 5, 31}, budget);
}

TEST(Exact, KeepsItsDeadline) {
  const auto begin = Budget::Clock::now();
  Budget budget;
  budget.deadline = begin + std::chrono::milliseconds(1500);
  EXPECT_EQ(ask_something_hard(budget).answer, Answer::gave_up);
  const std::chrono::duration<double> took = Budget::Clock::now() - begin;
  EXPECT_LT(took.count(), 30) << "1.6 s when nothing else runs; an answer takes minutes";
}

TEST(Exact, EndsAWalkAfterSoManyQuestions) {
  int asked = 0;
  Budget budget;
  budget.report = [&](std::string_view what) { asked += what.find("frontier at") != what.npos; };
  Synthesizer synthesizer(topology_from_name("torus:3x3"), {CollectiveKind::all_gather});
  (void)synthesizer.pareto(budget, {.most_chunks = 4, .work = 1, .most_questions = 2});
  EXPECT_EQ(asked, 2) << "with so little work nothing is answered";
}

TEST(Exact, StopsWhenTold) {
  std::atomic<bool> stop = false;
  Budget budget;
  budget.stop = &stop;
  Budget::Clock::time_point told;
  std::jthread impatient([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(1200));
    told = Budget::Clock::now();
    stop = true;
  });
  EXPECT_EQ(ask_something_hard(budget).answer, Answer::gave_up);
  const std::chrono::duration<double> took = Budget::Clock::now() - told;
  EXPECT_LT(took.count(), 30) << "0.1 s when nothing else runs; an answer takes minutes";
}

TEST(Exact, GivesUpAfterSoMuchWork) {
  EXPECT_EQ(synthesizer("dgx1", Kind::all_to_all).solve({24, 8, 8}, {}, 1000).answer,
            Answer::gave_up);
}

TEST(Exact, RefusesWhatMakesNoSense) {
  EXPECT_THROW(synthesizer("dgx1", Kind::barrier), InputError);
  EXPECT_THROW(synthesizer("dgx1", Kind::broadcast, 8), InputError);
  EXPECT_THROW((void)synthesizer("dgx1", Kind::all_gather).solve({0, 2, 2}, {}), InputError);
  EXPECT_THROW((void)synthesizer("dgx1", Kind::all_to_all).solve({12, 2, 8}, {}), InputError);
}

TEST(Exact, OneRankHasNothingToDo) {
  Synthesizer alone = synthesizer("ring:1", Kind::all_gather);
  const Result result = alone.solve({1, 1, 1}, {});
  EXPECT_EQ(result.answer, Answer::found);
  EXPECT_TRUE(result.schedule.steps.empty());
}

}  // namespace
}  // namespace chorus::synth::exact
