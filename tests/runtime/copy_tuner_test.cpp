// Tuning against machines that are drawn: what the two ways take, how late other ranks are, and
// when the machine becomes another one.
#include "runtime/executors/copy_tuner.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <random>
#include <vector>

namespace chorus::testing {
namespace {

/// Calls alike on a machine whose ways take `staged_s` and `kernel_s`, give or take noise.
struct Machine {
  double staged_s = 1e-4;
  double kernel_s = 2e-4;
  double noise = 0;      ///< share of the time, at most, that a call takes longer
  double disturbed = 0;  ///< share of calls that take several times as long

  [[nodiscard]] double seconds(bool by_kernel, std::mt19937_64& random) const {
    std::uniform_real_distribution<double> any(0, 1);
    const double s = (by_kernel ? kernel_s : staged_s) * (1 + noise * any(random));
    return any(random) < disturbed ? s * (1 + 5 * any(random)) : s;
  }
  [[nodiscard]] double best_s() const { return std::min(staged_s, kernel_s); }
};

/// What `calls` take in all.
double run(CopyTuner& tuner, const Machine& machine, int calls, std::mt19937_64& random) {
  double sum_s = 0;
  for (int i = 0; i < calls; ++i) {
    const double s = machine.seconds(tuner.by_kernel(), random);
    sum_s += s;
    tuner.done(tuner.measures() ? s : 0);
  }
  return sum_s;
}

Machine drawn(std::mt19937_64& random) {
  std::uniform_real_distribution<double> any(0, 1);
  const double s = std::pow(10.0, -6 + 4 * any(random));
  const double ratio = std::pow(7.0, 2 * any(random) - 1);
  return {.staged_s = s,
          .kernel_s = s * ratio,
          .noise = 0.3 * any(random),
          .disturbed = 0.1 * any(random)};
}

double percentile(std::vector<double> values, double p) {
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(p * static_cast<double>(values.size() - 1))];
}

/// The mean of a call with its noise, relative to without.
double dearer(const Machine& machine) {
  return (1 + machine.noise / 2) * (1 + 2.5 * machine.disturbed);
}

/// What `of` gives for each draw.
template <typename Of>
std::vector<double> over_draws(const Of& of) {
  std::vector<double> values;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    std::mt19937_64 random(seed);
    values.push_back(of(random));
  }
  return values;
}

/// What `calls` take, relative to the better way all the time.
double cost(CopyTuner& tuner, const Machine& machine, int calls, std::mt19937_64& random) {
  return run(tuner, machine, calls, random) / (calls * machine.best_s() * dearer(machine));
}

TEST(CopyTuner, CostsLittleWhereThePredictionHolds) {
  const auto costs = over_draws([](std::mt19937_64& random) {
    const Machine machine = drawn(random);
    CopyTuner tuner({.staged_s = machine.staged_s, .kernel_s = machine.kernel_s});
    return cost(tuner, machine, 20'000, random);
  });
  EXPECT_LT(percentile(costs, 0.5), 1.012);
  EXPECT_LT(percentile(costs, 0.95), 1.03);
  EXPECT_LT(percentile(costs, 1), 1.06);
}

TEST(CopyTuner, FindsTheFasterWayWhateverWasPredicted) {
  const auto costs = over_draws([](std::mt19937_64& random) {
    const Machine predicted = drawn(random);
    const Machine machine = drawn(random);
    CopyTuner tuner({.staged_s = predicted.staged_s, .kernel_s = predicted.kernel_s});
    run(tuner, machine, 3000, random);
    return cost(tuner, machine, 10'000, random);
  });
  EXPECT_LT(percentile(costs, 0.5), 1.015);
  EXPECT_LT(percentile(costs, 0.95), 1.08);  // whose ways hardly differ
  EXPECT_LT(percentile(costs, 1), 1.2);
}

/// How many until it has chosen this way.
int calls_until(bool by_kernel, CopyTuner& tuner, const Machine& machine, std::mt19937_64& random) {
  int calls = 0;
  for (; tuner.chosen() != by_kernel && calls < 10'000; ++calls) run(tuner, machine, 1, random);
  return calls;
}

// Whoever stays with what was predicted pays the other way's time until the end.
TEST(CopyTuner, FollowsAMachineThatBecomesAnother) {
  std::vector<double> back;
  auto calls = over_draws([&](std::mt19937_64& random) {
    Machine machine = drawn(random);
    machine.disturbed = 0.02;
    machine.kernel_s = machine.staged_s * 2;
    CopyTuner tuner({.staged_s = machine.staged_s, .kernel_s = machine.kernel_s});
    run(tuner, machine, 2000, random);
    EXPECT_FALSE(tuner.chosen());
    machine.staged_s *= 5;
    const int there = calls_until(true, tuner, machine, random);
    machine.staged_s /= 5;
    back.push_back(calls_until(false, tuner, machine, random));
    return there;
  });
  calls.insert(calls.end(), back.begin(), back.end());
  EXPECT_LT(percentile(calls, 0.5), 300);
  EXPECT_LT(percentile(calls, 0.95), 1500);
  EXPECT_LT(percentile(calls, 1), 3000);
}

// Times that say nothing: what was predicted is as good as any other way, and nothing is lost where
// it is right.
TEST(CopyTuner, SeldomLeavesARightWayInCallsThatAreAllNoise) {
  const auto wrong = over_draws([](std::mt19937_64& random) {
    const Machine machine{.staged_s = 1e-4, .kernel_s = 1.5e-4, .noise = 3, .disturbed = 0.3};
    CopyTuner tuner({.staged_s = machine.staged_s, .kernel_s = machine.kernel_s});
    int by_kernel = 0;
    for (int i = 0; i < 20'000; ++i) {
      by_kernel += tuner.by_kernel() ? 1 : 0;
      run(tuner, machine, 1, random);
    }
    return by_kernel / 20'000.0;
  });
  EXPECT_LT(percentile(wrong, 0.5), 0.1);
  EXPECT_LT(percentile(wrong, 0.95), 0.3);
}

/// Calls in which the other ranks do what they were asked for `lag` calls before, and never what
/// they cannot. What they do is what it takes; its time tells something where that was asked for.
double run_with_others(CopyTuner& tuner, const Machine& machine, int calls, int lag,
                       bool others_can_kernel, std::mt19937_64& random) {
  std::deque<bool> asked(static_cast<std::size_t>(lag), tuner.by_kernel());
  std::deque<bool> timed(static_cast<std::size_t>(lag), false);
  double sum_s = 0;
  for (int i = 0; i < calls; ++i) {
    asked.push_back(tuner.by_kernel());
    timed.push_back(tuner.measures());
    const bool by_kernel = asked.front() && others_can_kernel;
    const double s = machine.seconds(by_kernel, random);
    sum_s += s;
    const bool tells = tuner.measures() && timed.front() && by_kernel == tuner.by_kernel();
    asked.pop_front();
    timed.pop_front();
    tuner.done(tells ? s : 0);
  }
  return sum_s;
}

TEST(CopyTuner, FindsTheFasterWayAlsoWhereOthersHearALittleLater) {
  for (const int lag : {1, 2}) {
    const auto costs = over_draws([lag](std::mt19937_64& random) {
      const Machine predicted = drawn(random);
      const Machine machine = drawn(random);
      CopyTuner tuner({.staged_s = predicted.staged_s, .kernel_s = predicted.kernel_s});
      run_with_others(tuner, machine, 4000, lag, true, random);
      return run_with_others(tuner, machine, 10'000, lag, true, random) /
             (10'000 * machine.best_s() * dearer(machine));
    });
    EXPECT_LT(percentile(costs, 0.5), 1.02) << lag;
    EXPECT_LT(percentile(costs, 0.95), 1.08) << lag;
    EXPECT_LT(percentile(costs, 1), 1.2) << lag;
  }
}

// Whose buffers lie in memory that all can read, say. What was predicted does not matter then.
TEST(CopyTuner, SeldomAsksForWhatOthersCannotDo) {
  const auto asked = over_draws([](std::mt19937_64& random) {
    Machine machine = drawn(random);
    machine.kernel_s = machine.staged_s * 1.1;
    CopyTuner tuner({.staged_s = machine.staged_s, .kernel_s = machine.kernel_s});
    int by_kernel = 0;
    for (int i = 0; i < 20'000; ++i) {
      by_kernel += tuner.by_kernel() ? 1 : 0;
      run_with_others(tuner, machine, 1, 0, false, random);
    }
    EXPECT_FALSE(tuner.chosen());
    return by_kernel / 20'000.0;
  });
  EXPECT_LT(percentile(asked, 1), 0.02);  // each trial in vain is twenty calls
}

TEST(CopyTuner, NeverTriesWhatIsOutOfTheQuestion) {
  EXPECT_FALSE(CopyTuner::is_open({.staged_s = 1e-6, .kernel_s = 9e-6}));
  EXPECT_FALSE(CopyTuner::is_open({.staged_s = 9e-6, .kernel_s = 1e-6}));
  EXPECT_FALSE(CopyTuner::is_open({.staged_s = 0, .kernel_s = HUGE_VAL}));
  EXPECT_TRUE(CopyTuner::is_open({.staged_s = 1e-6, .kernel_s = 7e-6}));
}

TEST(CopyTuner, DoesAsAnotherRankDid) {
  CopyTuner tuner({.staged_s = 1e-6, .kernel_s = 2e-6});
  EXPECT_FALSE(tuner.by_kernel());
  tuner.follow(true);
  EXPECT_TRUE(tuner.by_kernel());
  tuner.follow(false);
  EXPECT_FALSE(tuner.by_kernel());
}

}  // namespace
}  // namespace chorus::testing
