// The planner's bytes are those that the trainer counts, whatever hides or saves messages; and
// machines of unequal ranks get unequal work.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "chorus/error.hpp"
#include "report/plan.hpp"
#include "world.hpp"

namespace trainer::testing {
namespace {

constexpr std::array kFlowAxes = {Axis::data,     Axis::expert_data, Axis::expert, Axis::tensor,
                                  Axis::pipeline, Axis::node,        Axis::across};

/// Bytes by axis that the ranks of the first replica send in their second step, the most of them.
/// Rows to experts are the gate's choice: the mean over all ranks.
std::vector<double> counted(const Config& config) {
  std::vector<double> most(kFlowAxes.size());
  std::mutex mutex;
  on_ranks(config.layout.world_size(), [&](chorus::Communicator& world) {
    Trainer<float> trainer(world, config);
    log_second_step(trainer);
    const Place place = trainer.groups().place;
    const std::lock_guard lock(mutex);
    for (std::size_t f = 0; f < most.size(); ++f) {
      const auto bytes = static_cast<double>(trainer.log().sent_bytes(kFlowAxes[f]));
      if (kFlowAxes[f] == Axis::expert) {
        most[f] += bytes / world.world_size();
      } else if (place.dp == 0 && place.tp == 0) {
        most[f] = std::max(most[f], bytes);
      }
    }
  });
  return most;
}

void expect_flows(const Config& config) {
  const std::vector<chorus::GridFlow> flows = flows_of(config);
  const std::vector<double> bytes = counted(config);
  ASSERT_EQ(flows.size(), bytes.size());
  for (std::size_t f = 0; f < flows.size(); ++f) {
    const double planned = flows[f].bytes * (kFlowAxes[f] == Axis::pipeline ? 2 : 1);
    const double slack = kFlowAxes[f] == Axis::expert ? 0.15 * bytes[f] : 0;
    EXPECT_NEAR(planned, bytes[f], slack) << flows[f].name;
    EXPECT_EQ(flows[f].messages > 0, bytes[f] > 0) << flows[f].name;
  }
}

Config of(const Layout& layout, int experts = 0) {
  Config config = small();
  config.layout = layout;
  config.model.experts = experts;
  return config;
}

TEST(Flows, OfHalvesAndPartsAreWhatIsSent) {
  expect_flows(of({.tp = 2, .halves = true}));
  expect_flows(of({.dp = 2, .tp = 2, .halves = true, .zero = 2, .micro_batches = 2}));
  Config experts = of({.dp = 4, .ep = 2, .expert_chunks = 2}, 8);
  experts.model.context = 64;
  expect_flows(experts);
  experts.layout.halves = true;
  expect_flows(experts);
  experts.layout.recompute = Recompute::full;
  expect_flows(experts);
}

TEST(Flows, OfZeroPlusPlusAreWhatIsSent) {
  for (const int secondary : {0, 2}) {
    for (const bool quantize : {false, true}) {
      Layout layout{.dp = 4, .zero = 3, .micro_batches = 2};
      layout.secondary = secondary;
      layout.quantize_weights = layout.quantize_gradients = quantize;
      expect_flows(of(layout));
    }
  }
}

TEST(Flows, OfCompressionAndAveragesAreWhatIsSent) {
  for (const Compression how :
       {Compression::qsgd, Compression::one_bit, Compression::top_k, Compression::power}) {
    Config config = of({.dp = 4});
    config.training.compression = how;
    expect_flows(config);
    if (how == Compression::power) continue;
    config.training.rounds = 3;
    expect_flows(config);
  }
  for (const Average average : {Average::ring, Average::exponential}) {
    Config config = of({.dp = 4});
    config.training.average = average;
    expect_flows(config);
  }
  Config local = of({.dp = 4});
  local.training.average = Average::local;
  local.training.global_every = 1;
  expect_flows(local);
}

TEST(Flows, OfUnequalBatchesAreThoseOfTheFullestReplica) {
  Layout layout{.dp = 2, .tp = 2, .pp = 2, .micro_batches = 2};
  layout.shares = {3, 1};
  expect_flows(of(layout));
}

Machine island(const char* topology, double flops = 1e9) {
  return {.topology = chorus::find_topology(topology), .flops_per_s = flops};
}

double seconds(const Config& config, const Machine& machine) {
  return estimate(config, machine, false).seconds;
}

// Messages of slices are hidden behind the other half where somebody else moves them; where cores
// move their own bytes there is nothing to win.
TEST(Estimates, HideWhatHalvesAndPartsHide) {
  Machine machine = island("ring:4", 1e12);
  Config whole = of({.tp = 4});
  whole.model.context = 512;
  whole.model.width = 256;
  whole.training.batch = 8;
  Config halves = whole;
  halves.layout.halves = true;
  const Estimate together = estimate(whole, machine, false);
  const Estimate apart = estimate(halves, machine, false);
  EXPECT_LT(apart.seconds, together.seconds);
  EXPECT_LT(apart.tensor_s, together.tensor_s);
  EXPECT_NEAR(apart.compute_s, together.compute_s, 1e-6 * together.compute_s);
  machine.overlaps = false;
  EXPECT_GE(seconds(halves, machine), seconds(whole, machine));

  machine.overlaps = true;
  Config experts = whole;
  experts.layout = {.dp = 4, .ep = 4};
  experts.model.experts = 16;
  const double one = estimate(experts, machine, false).expert_s;
  experts.layout.expert_chunks = 4;
  EXPECT_LT(estimate(experts, machine, false).expert_s, one);
}

// Per micro-batch and value of a rank ZeRO-2 empties a gradient and adds a shard, which reads two
// values and writes one; ZeRO-3 also copies its shard to where the others' come.
TEST(Estimates, CountTheMemoryThatShardedBuffersTouch) {
  Machine machine = island("ring:4");
  machine.pace = pace_of(machine.flops_per_s);
  Config config = of({.dp = 4, .micro_batches = 3});
  const double values = 3 * sizeof(float) * static_cast<double>(parameters(config.model));
  const double touched[] = {0, 0, 1 + 3.0 / 4, 1 + 3.0 / 4 + 2.0 * 2 / 4};
  for (const int zero : {0, 1, 2, 3}) {
    config.layout.zero = zero;
    machine.pace.byte_s = 0;
    const Estimate free = estimate(config, machine, false);
    machine.pace.byte_s = 1e-6;
    const Estimate paid = estimate(config, machine, false);
    EXPECT_NEAR(paid.compute_s - free.compute_s, 1e-6 * touched[zero] * values, 1e-9) << zero;
    EXPECT_NEAR(paid.seconds - free.seconds, 1e-6 * touched[zero] * values, 1e-9) << zero;
  }
}

TEST(Estimates, CountWhatIsSentWhenAllPassesAreOver) {
  // Slow ranks: of gradients only the last layer's do not hide behind passes, of payloads all.
  Config dense = of({.dp = 4});
  dense.model.layers = 16;
  Config compressed = dense;
  compressed.training.compression = Compression::qsgd;
  const Machine machine = island("ring:4", 1e9);
  EXPECT_GT(estimate(compressed, machine, false).data_s, estimate(dense, machine, false).data_s);
  compressed.training.compression = Compression::one_bit;
  Machine slow = island("ring:4", 1e15);  // fast ranks: only bytes count
  for (auto& link : slow.topology.links) link.alpha_s = 0;
  EXPECT_LT(seconds(compressed, slow), 0.3 * seconds(dense, slow));
  Config local = dense;
  local.training.average = Average::local;
  local.training.global_every = 10;
  EXPECT_LT(seconds(local, slow), 0.2 * seconds(dense, slow));
}

TEST(Plans, SearchWhatKeepsTheArithmeticAndKeepWhatDoesNot) {
  Config base;
  base.model = preset("1.3B");
  const Machine boxes = {.topology = chorus::find_topology("2*dgx-a100"), .flops_per_s = 300e12};
  const Plan plan = best_layouts(base, 64, boxes, 200);
  const auto any = [&](const std::function<bool(const Layout&)>& is) {
    return std::ranges::any_of(plan.best, [&](const Estimate& e) { return is(e.config.layout); });
  };
  EXPECT_TRUE(any([](const Layout& l) { return l.halves; }));
  for (const Estimate& e : plan.best) check(e.config, 16);
  base.training.compression = Compression::one_bit;
  for (const Estimate& e : best_layouts(base, 64, boxes, 20).best) {
    EXPECT_EQ(e.config.training.compression, Compression::one_bit);
    check(e.config, 16);
  }
  base.training.compression = Compression::none;
  base.layout.quantize_weights = true;
  for (const Estimate& e : best_layouts(base, 64, boxes, 20).best) {
    EXPECT_EQ(e.config.layout.zero, e.config.layout.dp > 1 ? 3 : 0);
    EXPECT_EQ(e.config.layout.quantize_weights, e.config.layout.dp > 1);
    check(e.config, 16);
  }
}

// A node's copy of all values saves the second way across nodes of every step.
TEST(Plans, KeepASecondaryPartitionWhereNodesAreFarApart) {
  Config base;
  base.model = preset("125M");
  base.layout.quantize_weights = true;  // ZeRO-3 it is
  Machine boxes = {.topology = chorus::find_topology("2*dgx-a100"), .flops_per_s = 300e12};
  Config plain = base;
  plain.layout = {.dp = 16, .zero = 3, .quantize_weights = true, .micro_batches = 4};
  Config nodes = plain;
  nodes.layout.secondary = 8;
  EXPECT_LT(seconds(nodes, boxes), seconds(plain, boxes));
}

/// ring:n with ranks of these speeds, and messages that cost nothing.
Machine unequal(const char* topology, std::vector<double> speeds) {
  Machine machine = island(topology);
  for (auto& link : machine.topology.links) link.alpha_s = link.beta_s_per_byte = 0;
  machine.speeds = std::move(speeds);
  return machine;
}

/// The least time over all ways to divide `sequences` and layers; micro-batches as in `config`.
double best_of_all(Config config, const Machine& machine, int sequences) {
  double best = 1e9;
  const int layers = config.model.layers;
  for (int b = 1; b < (config.layout.dp == 2 ? sequences : 2); ++b) {
    for (int l = 1; l < (config.layout.pp == 2 ? layers : 2); ++l) {
      if (config.layout.dp == 2) config.layout.shares = {b, sequences - b};
      if (config.layout.pp == 2) config.layout.partition = {l, layers - l};
      best = std::min(best, seconds(config, machine));
    }
  }
  return best;
}

// Shares that come out equal are the layout that has a batch: it is listed once.
TEST(Plans, ListEqualSharesOnce) {
  Config base;
  base.model = preset("tiny");
  base.model.layers = 4;
  const Plan plan = best_layouts(base, 16, unequal("ring:4", {3, 3, 1, 1}), 100);
  bool divided = false;
  for (const Estimate& e : plan.best) {
    const std::vector<int>& shares = e.config.layout.shares;
    if (shares.empty()) continue;
    divided = true;
    EXPECT_NE(std::ranges::count(shares, shares[0]), e.config.layout.dp);
  }
  EXPECT_TRUE(divided);
}

TEST(Plans, OfUnequalMachinesAreAsGoodAsTheBestOfAllShares) {
  Config base = of({}, 0);
  base.model.layers = 8;
  base.model.vocab = 4;
  struct Case {
    const char* topology;
    std::vector<double> speeds;
    int dp, pp;
  };
  for (const Case& c : {Case{"ring:2", {3, 1}, 2, 1}, Case{"ring:2", {1, 3}, 1, 2},
                        Case{"ring:4", {3, 3, 1, 1}, 2, 2}, Case{"ring:4", {4, 2, 2, 1}, 2, 2}}) {
    const Machine machine = unequal(c.topology, c.speeds);
    Config config = base;
    config.layout = {.dp = c.dp, .pp = c.pp, .micro_batches = 16};
    config.training.batch = 8 / c.dp;
    const double even = seconds(config, machine);
    const double best = best_of_all(config, machine, 8);
    if (c.dp == 2) config.layout.shares = {4, 4};
    const std::vector<chorus::GridFlow> flows = flows_of(config);
    const auto mapping = chorus::map_grid(machine.topology, grid_of(config.layout), flows);
    const Config ours = balanced(config, machine, mapping);
    check(ours, c.dp * c.pp);
    EXPECT_EQ(ours.sequences(), 8);
    EXPECT_LE(seconds(ours, machine), 1.1 * best) << c.topology << ", dp " << c.dp;
    EXPECT_LT(seconds(ours, machine), 0.8 * even) << c.topology << ", dp " << c.dp;
  }
}

TEST(Plans, OfUnequalMachinesShareABatchOutOverRanksWithExpertsToo) {
  Config base;
  base.model = preset("tiny");
  base.model.experts = 4;
  const Machine machine = unequal("ring:2", {3, 1});
  const Plan plan = best_layouts(base, 8, machine, 20);
  bool found = false;
  for (const Estimate& e : plan.best) {
    const Layout& l = e.config.layout;
    if (l.ep != 2 || l.shares.empty()) continue;
    found = true;
    check(e.config, 2);
    EXPECT_GT(l.shares[0], l.shares[1]);
    Config even = e.config;
    even.layout.shares.clear();
    even.layout.ranks.clear();
    even.training.batch = e.config.sequences() / 2;
    EXPECT_LT(e.seconds, seconds(even, machine));
  }
  EXPECT_TRUE(found);
  EXPECT_EQ(describe(plan, machine).find("-0.0"), std::string::npos);
}

TEST(Plans, OfUnequalMachinesUseUnequalWork) {
  Config base;
  base.model = preset("tiny");
  base.model.layers = 6;
  const Machine machine = unequal("ring:2", {3, 1});
  const Plan plan = best_layouts(base, 8, machine, 20);
  const Layout& best = plan.best.front().config.layout;
  EXPECT_TRUE(!best.shares.empty() || !best.partition.empty());
  Machine alike = machine;
  alike.speeds.clear();
  for (const Estimate& e : best_layouts(base, 8, alike, 20).best) {
    EXPECT_TRUE(e.config.layout.shares.empty() && e.config.layout.partition.empty());
  }
  alike.speeds = {1};
  EXPECT_THROW(check_speeds(alike), chorus::InputError);
  alike.speeds = {1, std::numeric_limits<double>::infinity()};
  EXPECT_THROW(check_speeds(alike), chorus::InputError);
  alike.speeds = {1, 0};
  EXPECT_THROW(check_speeds(alike), chorus::InputError);
}

}  // namespace
}  // namespace trainer::testing
