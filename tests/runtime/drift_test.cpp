// A network that changes is noticed; one that is only noisy is not.
#include "runtime/probing/drift.hpp"

#include <gtest/gtest.h>

#include <random>

namespace chorus {
namespace {

/// Windows until something is said; 0 if nothing is within `most`.
int windows_until_told(Drift& drift, double ratio, int most, double* change = nullptr) {
  for (int window = 1; window <= most; ++window) {
    for (int call = 0; call < Drift::kWindow; ++call) {
      if (const auto told = drift.note(0.010, 0.010 * ratio)) {
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
    EXPECT_EQ(drift.note(0.010, 0.010 * ratio), std::nullopt) << call;
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

}  // namespace
}  // namespace chorus
