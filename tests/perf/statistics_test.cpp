#include "perf/report/statistics.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "chorus/error.hpp"

namespace chorus::perf {
namespace {

TEST(Percentile, IsTheNearestRank) {
  EXPECT_EQ(percentile({5, 1, 4, 2, 3}, 0.5), 3);
  EXPECT_EQ(percentile({5, 1, 4, 2, 3}, 1.0), 5);
  EXPECT_EQ(percentile({7}, 0.01), 7);
  std::vector<double> hundred;
  for (int i = 100; i >= 1; --i) hundred.push_back(i);
  EXPECT_EQ(percentile(hundred, 0.99), 99);
  EXPECT_EQ(percentile(hundred, 0.50), 50);
}

TEST(Median, OfAnEvenNumberIsTheMeanOfTheMiddle) {
  EXPECT_EQ(median({1, 100, 3}), 3);
  EXPECT_EQ(median({4, 1, 2, 100}), 3);
}

TEST(GeometricMean, TreatsDoubleAndHalfAlike) {
  EXPECT_DOUBLE_EQ(geometric_mean(std::vector<double>{0.5, 2}), 1);
  EXPECT_DOUBLE_EQ(geometric_mean(std::vector<double>{4, 1, 1, 1}), std::sqrt(2.0));
}

TEST(Slowest, TakesEachIterationFromItsSlowestRank) {
  const std::vector<std::vector<std::int64_t>> rows = {{1, 9, 3}, {}, {4, 2, 3}};
  EXPECT_EQ(slowest(rows), (std::vector<double>{4, 9, 3}));
  EXPECT_TRUE(slowest(std::vector<std::vector<std::int64_t>>{{}, {}}).empty());
}

TEST(Slowest, RefusesRanksThatRanDifferentNumbersOfIterations) {
  const std::vector<std::vector<std::int64_t>> rows = {{1, 2}, {1}};
  EXPECT_THROW((void)slowest(rows), Error);
}

}  // namespace
}  // namespace chorus::perf
