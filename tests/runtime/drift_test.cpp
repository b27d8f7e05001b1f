// A network that changes is noticed; one that is only noisy is not.
#include "runtime/probing/drift.hpp"

#include <gtest/gtest.h>

#include <random>

namespace chorus {
namespace {

constexpr Drift::Shape kAllReduce{.kind = CollectiveKind::all_reduce, .log2_bytes = 25};
constexpr Drift::Shape kAllGather{.kind = CollectiveKind::all_gather, .log2_bytes = 25};
constexpr Drift::Shape kSmallAllReduce{.kind = CollectiveKind::all_reduce, .log2_bytes = 21};

/// Windows until something is said; 0 if nothing is within `most`.
int windows_until_told(Drift& drift, double ratio, int most, double* change = nullptr,
                       Drift::Shape shape = kAllReduce) {
  for (int window = 1; window <= most; ++window) {
    for (int call = 0; call < Drift::kWindow; ++call) {
      if (const auto told = drift.note(shape, 0.010, 0.010 * ratio)) {
        if (change != nullptr) *change = *told;
        return window;
      }
    }
  }
  return 0;
}

TEST(Drift, StragglersAndNoiseAreNotTheNetwork) {
  Drift drift(true);
  std::mt19937 random(1);
  std::uniform_real_distribution<double> late(1, 20);
  for (int call = 0; call < 1000; ++call) {
    // One call in eight finds all ranks in time.
    const double ratio = call % 8 == 3 ? 1.2 : late(random) * 1.2;
    EXPECT_EQ(drift.note(kAllReduce, 0.010, 0.010 * ratio), std::nullopt) << call;
  }
}

TEST(Drift, ASlowerNetworkIsToldAfterTwoWindowsAndOnce) {
  Drift drift(true);
  EXPECT_EQ(windows_until_told(drift, 1.3, 10), 0);
  double change = 0;
  EXPECT_EQ(windows_until_told(drift, 2.6, 10, &change), 2);
  EXPECT_NEAR(change, 2.0, 1e-9);
  EXPECT_EQ(windows_until_told(drift, 26, 10), 0);
}

TEST(Drift, AFasterNetworkIsToldToo) {
  Drift drift(true);
  EXPECT_EQ(windows_until_told(drift, 2.0, 3), 0);
  double change = 0;
  EXPECT_EQ(windows_until_told(drift, 0.5, 10, &change), 2);
  EXPECT_NEAR(change, 0.25, 1e-9);
}

TEST(Drift, OneBadWindowIsForgotten) {
  Drift drift(true);
  EXPECT_EQ(windows_until_told(drift, 1.0, 2), 0);
  for (int turn = 0; turn < 5; ++turn) {
    EXPECT_EQ(windows_until_told(drift, 3.0, 1), 0);
    EXPECT_EQ(windows_until_told(drift, 1.0, 1), 0);
  }
}

TEST(Drift, WhatAnEarlierJobProbedIsHeldAgainstItsPredictions) {
  Drift fresh(true);
  EXPECT_EQ(windows_until_told(fresh, 4.0, 10), 0);  // predictions are not exact
  Drift cached(false);
  EXPECT_EQ(windows_until_told(cached, 4.0, 10), 2);
  Drift near(false);
  EXPECT_EQ(windows_until_told(near, 2.0, 10), 0);
}

TEST(Drift, CallsOfAnotherKindOrSizeAreNotTheNetwork) {
  Drift drift(true);
  EXPECT_EQ(windows_until_told(drift, 1.0, 4), 0);
  EXPECT_EQ(windows_until_told(drift, 0.2, 4, nullptr, kAllGather), 0);
  EXPECT_EQ(windows_until_told(drift, 3.0, 4, nullptr, kSmallAllReduce), 0);
  // Each is still held against itself, whatever comes between.
  EXPECT_EQ(windows_until_told(drift, 6.0, 1, nullptr, kSmallAllReduce), 0);
  EXPECT_EQ(windows_until_told(drift, 1.0, 1), 0);
  EXPECT_EQ(windows_until_told(drift, 6.0, 4, nullptr, kSmallAllReduce), 1);
}

TEST(Drift, WhatTheKernelTakesAheadOfTheWireIsNotTheNetwork) {
  Drift cached(false);
  EXPECT_EQ(windows_until_told(cached, 0.3, 10, nullptr, kAllGather), 0);
  EXPECT_EQ(windows_until_told(cached, 0.6, 10, nullptr, kAllGather), 0);
  EXPECT_EQ(windows_until_told(cached, 3.0, 10, nullptr, kAllGather), 2);
  Drift all_reduce(false);
  EXPECT_EQ(windows_until_told(all_reduce, 0.3, 10), 2);
}

}  // namespace
}  // namespace chorus
