// bfloat16 products with float32 values: rounding is to nearest and even, updates too small for
// bfloat16 are not lost, and training ends where float32 does.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "chorus/error.hpp"
#include "model/random.hpp"
#include "world.hpp"

namespace trainer::testing {
namespace {

float rounded(float x) { return kernel::expanded(kernel::rounded(x)); }

TEST(Bfloat16, RoundsToNearestAndEven) {
  EXPECT_EQ(rounded(1.0F), 1.0F);
  EXPECT_EQ(rounded(-1.0F - 0x1p-7F), -1.0F - 0x1p-7F);
  EXPECT_EQ(rounded(1.0F + 0x1p-8F), 1.0F);                      // a tie: down to even
  EXPECT_EQ(rounded(1.0F + 0x1p-7F + 0x1p-8F), 1.0F + 0x1p-6F);  // a tie: up to even
  EXPECT_EQ(rounded(1.0F + 0x1p-8F + 0x1p-20F), 1.0F + 0x1p-7F);
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(rounded(-infinity), -infinity);
  EXPECT_TRUE(std::isnan(rounded(std::numeric_limits<float>::quiet_NaN())));
}

TEST(Bfloat16, ProductsAreThoseOfRoundedFactors) {
  const int m = 5, n = 7, k = 9;
  std::vector<float> a(m * k), b(n * k), c(m * n), expected(m * n);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(random_normal(1, 1, i));
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(random_normal(1, 2, i));
  const auto ops = make_cpu_ops<float>(16, Precision::bfloat16);
  ops->gemm(Op::as_is, Op::transposed, m, n, k, a.data(), k, b.data(), k, 0, c.data(), n);
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      double sum = 0;
      for (int l = 0; l < k; ++l) {
        sum += double(rounded(a[i * k + l])) * rounded(b[j * k + l]);
      }
      EXPECT_NEAR(c[i * n + j], sum, 1e-5);
    }
  }
  // The other way round, out of wider rows.
  ops->gemm(Op::transposed, Op::as_is, 2, 3, m, a.data(), k, c.data(), n, 0, expected.data(), 3);
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 3; ++j) {
      double sum = 0;
      for (int l = 0; l < m; ++l) {
        sum += double(rounded(a[l * k + i])) * rounded(c[l * n + j]);
      }
      EXPECT_NEAR(expected[i * 3 + j], sum, 1e-5);
    }
  }
  EXPECT_THROW(make_cpu_ops<double>(16, Precision::bfloat16), chorus::InputError);
}

TEST(Bfloat16, TrainsToTheLossOfFloat32) {
  Config config = small();
  config.layout.dp = 2;
  config.training.batch = 8;
  config.training.steps = 200;
  const Outcome full = train(config, 200);
  config.training.bfloat16 = true;
  const Outcome coarse = train(config, 200);
  const auto [gap, tensor] = distance(coarse.gradients, full.gradients);
  std::printf("held out %.4f, in bfloat16 %.4f; first gradients apart by %.4f (%s)\n",
              full.held_out, coarse.held_out, gap, tensor.c_str());
  EXPECT_NE(coarse.gradients, full.gradients);
  EXPECT_NEAR(coarse.losses[0], full.losses[0], 2e-2);
  EXPECT_LT(gap, 0.05);
  EXPECT_NEAR(coarse.held_out, full.held_out, 0.02 * full.held_out);
}

// A step of 1e-5 is less than half of bfloat16's spacing at 0.02 (6e-5): only float32 values move.
TEST(Bfloat16, UpdatesBelowItsSpacingAreKept) {
  Config config = small();
  config.training.bfloat16 = true;
  config.training.learning_rate = config.training.min_learning_rate = 1e-5;
  config.training.warmup_steps = 0;
  const Outcome run = train(config, 40);
  config.training.learning_rate = config.training.min_learning_rate = 0;
  EXPECT_LT(run.held_out, train(config, 1).held_out);
  std::size_t moved = 0;
  for (const double v : run.values.at("layer0.qkv.weight")) {
    moved += v != double(rounded(static_cast<float>(v))) ? 1 : 0;
  }
  EXPECT_GT(moved, run.values.at("layer0.qkv.weight").size() / 2);
}

TEST(Bfloat16, SlicesEqualOneRankToItsRounding) {
  Config config = small();
  config.training.bfloat16 = true;
  const Outcome one = train(config, 6);
  config.layout.tp = 2;
  const Outcome two = train(config, 6);
  for (std::size_t i = 0; i < one.losses.size(); ++i) {
    EXPECT_NEAR(two.losses[i], one.losses[i], 2e-2);
  }
}

}  // namespace
}  // namespace trainer::testing
