#include "model/price/price.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace chorus {
namespace {

TEST(Price, OfALineIsThatLine) {
  const Cost line{.alpha_s = 3e-6, .beta_s_per_byte = 1.7e-11};
  const Price price = line;
  for (const double bytes : {0.0, 1.0, 4096.0, 1e9, 1e15}) {
    EXPECT_DOUBLE_EQ(price.seconds(bytes), line.seconds(bytes));
    EXPECT_DOUBLE_EQ(price.line_at(bytes).beta_s_per_byte, line.beta_s_per_byte);
  }
}

TEST(Price, GoesThroughItsPointsAndOnAsBetweenTheLastTwo) {
  const Price price({{0, 1}, {10, 2}, {20, 6}});
  EXPECT_DOUBLE_EQ(price.seconds(0), 1);
  EXPECT_DOUBLE_EQ(price.seconds(5), 1.5);
  EXPECT_DOUBLE_EQ(price.seconds(10), 2);
  EXPECT_DOUBLE_EQ(price.seconds(15), 4);
  EXPECT_DOUBLE_EQ(price.seconds(100), 38);
  EXPECT_DOUBLE_EQ(price.line_at(10).alpha_s, -2) << "the line that begins there";
}

TEST(Price, GrowsByALine) {
  Price price({{0, 1}, {10, 2}, {20, 6}});
  price += {.alpha_s = 1, .beta_s_per_byte = 2};
  EXPECT_DOUBLE_EQ(price.seconds(0), 2);
  EXPECT_DOUBLE_EQ(price.seconds(15), 35);
}

TEST(Price, NeedsPointsThatAscendFromNothing) {
  using Points = std::vector<Price::Point>;
  for (const Points& points :
       {Points{}, Points{{0, 1}}, Points{{1, 1}, {2, 2}}, Points{{0, 1}, {5, 2}, {5, 3}}}) {
    EXPECT_DEATH(Price{points}, "points that ascend from 0 bytes");
  }
}

}  // namespace
}  // namespace chorus
