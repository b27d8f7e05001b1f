// The bytes that a run sends are the formulas', to the byte, on every rank.
#include "report/volume.hpp"

#include <gtest/gtest.h>

#include "world.hpp"

namespace trainer::testing {
namespace {

TEST(Volume, OfReplicasIsEquation2AndOfZero3Equation3) {
  Config config = small(5);
  config.layout.dp = 4;
  config.model.tied = false;
  const double p = static_cast<double>(parameters(config.model)) * sizeof(float);
  for (const int zero : {0, 1, 2, 3}) {
    config.layout.zero = zero;
    expect_predicted(config);
    const auto sent = static_cast<double>(predicted_volume(config, 0, sizeof(float))[0]);
    // Padding adds a few elements; under ZeRO-3 embedding and output, which are used once, need one
    // gathering less than equation 3 counts, and so do the two layers that the forward pass ends
    // with.
    const double ends = 4.0 * (2 * 64 * 32 + 16 * 32 + 64) * 3 / 4;
    const double layers = (p * 3 / 4 - ends) / 5;
    EXPECT_NEAR(sent, zero < 3 ? 2 * p * 3 / 4 : 3 * p * 3 / 4 - ends - 2 * layers, 200);
  }
}

TEST(Volume, OfZero3CountsWhatPassesLeaveForTheNext) {
  for (const int layers : {1, 2, 3, 5}) {
    for (const int micro_batches : {1, 3}) {
      for (const bool overlap : {true, false}) {
        SCOPED_TRACE(::testing::Message() << layers << " layers, " << micro_batches << overlap);
        Config config = small(layers);
        config.layout = {.dp = 2, .zero = 3, .micro_batches = micro_batches, .overlap = overlap};
        expect_predicted(config);
      }
    }
  }
  Config config = small(4);
  for (const Pipeline pipeline :
       {Pipeline::gpipe, Pipeline::one_f_one_b, Pipeline::interleaved, Pipeline::zero_bubble}) {
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
      SCOPED_TRACE(::testing::Message() << name_of(pipeline) << ", " << name_of(recompute));
      config.layout = {.dp = 2, .pp = 2, .zero = 3, .micro_batches = 4};
      config.layout.virtual_stages = pipeline == Pipeline::interleaved ? 2 : 1;
      config.layout.pipeline = pipeline;
      config.layout.recompute = recompute;
      expect_predicted(config);
    }
  }
  config = small(3);
  config.model.experts = 4;
  config.layout = {.dp = 4, .ep = 2, .zero = 3, .micro_batches = 2};
  expect_predicted(config);
}

TEST(Volume, OfTensorParallelRanksIsEquation5WithFullRecomputation) {
  Config config = small();
  config.layout.tp = 4;
  for (const bool sequence : {false, true}) {
    for (const Recompute recompute : {Recompute::none, Recompute::full}) {
      config.layout.sequence_parallel = sequence;
      config.layout.recompute = recompute;
      expect_predicted(config);
      if (sequence) continue;
      // (12 L + 2) · b s h · (t − 1) / t with recomputation, (8 L + 2) without; here the gradient
      // of the output's input is one all_reduce more, and the loss needs 6 numbers per token.
      const double tokens = 2 * 16;
      const double layers = recompute == Recompute::full ? 12 : 8;
      const double equation = (layers * 2 + 2) * tokens * 32 * 4 * 3 / 4;
      const double output = 2 * tokens * 32 * 4 * 3 / 4 + 6 * tokens * 4 * 3 / 4;
      const auto at = static_cast<std::size_t>(Axis::tensor);
      EXPECT_EQ(static_cast<double>(predicted_volume(config, 0, 4)[at]), equation + output);
    }
  }
}

TEST(Volume, OfPipelinesIsEquation4) {
  Config config = small(4);
  config.layout.pp = 4;
  config.layout.micro_batches = 4;
  double all = 0;
  for (int r = 0; r < 4; ++r) {
    all += static_cast<double>(
        predicted_volume(config, r, 4)[static_cast<std::size_t>(Axis::pipeline)]);
  }
  EXPECT_EQ(all, 4 * 2.0 * 2 * 16 * 32 * (4 - 1) * 4);  // 2 m b s h (p − 1) elements
  expect_predicted(config);
}

TEST(Volume, OfProductsAddsUp) {
  Config config = small(4);
  config.model.tied = true;
  config.layout = {
      .dp = 2, .tp = 2, .pp = 2, .zero = 1, .sequence_parallel = true, .micro_batches = 2};
  expect_predicted(config);
  config.layout.zero = 3;
  config.layout.pipeline = Pipeline::zero_bubble;
  config.layout.recompute = Recompute::full;
  expect_predicted(config);
  config.layout = {.dp = 4, .tp = 2, .ep = 2, .zero = 2};
  config.model.experts = 4;
  expect_predicted(config);
}

TEST(Volume, DoublesWithTheSequenceExceptBetweenReplicas) {
  Config config = small(4);
  config.layout = {.dp = 2, .tp = 2, .pp = 2, .micro_batches = 2};
  const Volume once = predicted_volume(config, 0, 4);
  config.model.context *= 2;
  const Volume twice = predicted_volume(config, 0, 4);
  EXPECT_EQ(twice[static_cast<std::size_t>(Axis::tensor)],
            2 * once[static_cast<std::size_t>(Axis::tensor)]);
  EXPECT_EQ(twice[static_cast<std::size_t>(Axis::pipeline)],
            2 * once[static_cast<std::size_t>(Axis::pipeline)]);
  // Only the learned positions grow.
  EXPECT_EQ(twice[0] - once[0], 16U * 32 * 4);
}

TEST(Volume, CountsParametersAsTheModelHoldsThem) {
  for (const Preset& p : presets()) {
    if (p.model.layers > 24) continue;
    Config config;
    config.model = p.model;
    config.training.batch = 1;
    const Trainer<float> imagined(config, 0);
    EXPECT_EQ(imagined.memory().used_bytes(Use::optimizer) / 64, (2 * parameters(p.model) * 4) / 64)
        << p.name;
  }
}

}  // namespace
}  // namespace trainer::testing
