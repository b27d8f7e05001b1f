// Which way puts go, on machines that are drawn: whose cores are near or far apart, that were
// probed while they were the one or the other, and that become the other one.
#include "transports/shm/put_ways.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace chorus {
namespace {

constexpr std::size_t kBytes = 65536;
constexpr int kClass = 16;

/// Seconds for kBytes.
struct Machine {
  MessageCopies copies;
  double noise = 0;      ///< share of the time, at most, that a copy takes longer
  double disturbed = 0;  ///< share of copies that take several times as long

  [[nodiscard]] double total_s(PutWay way, bool in_a_row) const {
    switch (way) {
      case PutWay::stage:
        return together_s(copies.stage_s, copies.fetch_s, in_a_row);
      case PutWay::stream:
        return together_s(copies.stream_s, copies.fetch_streamed_s, in_a_row);
      default:
        return copies.kernel_s;
    }
  }
  [[nodiscard]] double best_s(bool in_a_row) const {
    return std::min({total_s(PutWay::stage, in_a_row), total_s(PutWay::stream, in_a_row),
                     total_s(PutWay::kernel, in_a_row)});
  }
};

/// Two states of one machine: what passes through the caches takes longer in the far one.
struct Drawn {
  Machine near, far;
};
Drawn drawn(std::mt19937_64& random, bool kernel) {
  std::uniform_real_distribution<double> any(0, 1);
  const auto between = [&](double a, double b) { return a * std::pow(b / a, any(random)); };
  Machine near;
  near.copies = {.stage_s = between(2e-6, 8e-6),
                 .fetch_s = between(1e-6, 4e-6),
                 .stream_s = between(2e-6, 8e-6),
                 .fetch_streamed_s = between(4e-6, 16e-6),
                 .kernel_s = kernel ? between(5e-6, 20e-6) : MessageCopies::kNever};
  near.noise = 0.3 * any(random);
  near.disturbed = 0.05 * any(random);
  Machine far = near;
  const double farther = between(1, 6);
  far.copies.stage_s *= farther;
  // What lies in another cache is no farther than memory.
  far.copies.fetch_s = std::min(farther * far.copies.fetch_s,
                                std::max(far.copies.fetch_s, far.copies.fetch_streamed_s));
  return {near, far};
}

PutWays ways_as_probed(const Machine& machine) {
  return PutWays({.of = std::vector<MessageCopies>(kClass + 1, machine.copies)});
}

/// Times as long as the best way all the time, noise apart.
double dearer(PutWays& ways, const Machine& machine, bool in_a_row, int puts,
              std::mt19937_64& random) {
  std::uniform_real_distribution<double> any(0, 1);
  double sum_s = 0;
  for (int i = 0; i < puts; ++i) {
    const PutWay way = ways.next(kBytes, in_a_row);
    sum_s += machine.total_s(way, in_a_row);
    if (way == PutWay::kernel) continue;
    double seconds = way == PutWay::stage ? machine.copies.stage_s : machine.copies.stream_s;
    seconds *= 1 + machine.noise * any(random);
    if (any(random) < machine.disturbed) seconds *= 1 + 5 * any(random);
    ways.took(way, kBytes, seconds);
  }
  return sum_s / puts / machine.best_s(in_a_row);
}

double percentile(std::vector<double> values, double p) {
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(p * static_cast<double>(values.size() - 1))];
}

TEST(PutWays, StagesWhereNothingIsKnown) {
  PutWays ways;
  for (const std::size_t bytes : {41, 4096, 1 << 20}) {
    EXPECT_EQ(ways.next(bytes, false), PutWay::stage);
  }
  EXPECT_FALSE(ways.any_by_kernel());
}

TEST(PutWays, FollowsWhatWasProbedUntilPutsShowOtherwise) {
  const MessageCopies copies{.stage_s = 10e-6,
                             .fetch_s = 5e-6,
                             .stream_s = 3e-6,
                             .fetch_streamed_s = 8e-6,
                             .kernel_s = 14e-6};
  PutWays ways({.of = std::vector<MessageCopies>(kClass + 1, copies)});
  EXPECT_EQ(ways.next(kBytes, false), PutWay::stream);  // 11 us
  EXPECT_EQ(ways.next(2 * kBytes, false), PutWay::stage) << "of larger ones nothing is known";
  EXPECT_FALSE(ways.any_by_kernel());
  MessageCopies cheap = copies;
  cheap.kernel_s = 12e-6;  // hardly more, and the sender's core is free
  PutWays by_kernel({.of = std::vector<MessageCopies>(kClass + 1, cheap)});
  EXPECT_TRUE(by_kernel.any_by_kernel());
  EXPECT_EQ(by_kernel.next(kBytes, false), PutWay::kernel);
  EXPECT_EQ(by_kernel.next(kBytes, true), PutWay::stream);  // the slower copy takes 8
}

TEST(PutWays, NothingIsTriedThatWasNotMeasured) {
  const MessageCopies copies{.stage_s = 10e-6, .fetch_s = 5e-6, .kernel_s = 40e-6};
  PutWays ways({.of = std::vector<MessageCopies>(kClass + 1, copies)});
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(ways.next(kBytes, i % 2 == 0), PutWay::stage);
    ways.took(PutWay::stage, kBytes, 50e-6);
  }
}

// Whatever the machine was when it was probed, and whatever it becomes.
TEST(PutWays, CostHardlyMoreThanTheBestWayOnMachinesThatBecomeOthers) {
  std::vector<double> settled, changed;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    std::mt19937_64 random(seed);
    const auto [near, far] = drawn(random, seed % 2 == 0);
    const bool in_a_row = seed % 4 < 2;
    PutWays ways = ways_as_probed(seed % 8 < 4 ? near : far);
    for (const Machine& machine : {near, far, near}) {
      changed.push_back(dearer(ways, machine, in_a_row, 1000, random));
      settled.push_back(dearer(ways, machine, in_a_row, 4000, random));
    }
  }
  RecordProperty("settled_median", std::to_string(percentile(settled, 0.5)));
  std::printf("settled: median %.3f, 95 %% %.3f, worst %.3f; after a change: %.3f, %.3f, %.3f\n",
              percentile(settled, 0.5), percentile(settled, 0.95), percentile(settled, 1),
              percentile(changed, 0.5), percentile(changed, 0.95), percentile(changed, 1));
  EXPECT_LT(percentile(settled, 0.5), 1.05);
  EXPECT_LT(percentile(settled, 0.95), 1.3);
  EXPECT_LT(percentile(changed, 0.5), 1.1);
}

}  // namespace
}  // namespace chorus
