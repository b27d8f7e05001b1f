// Every gradient against central differences in float64, through the whole model.
#include <gtest/gtest.h>

#include <cmath>

#include "world.hpp"

namespace trainer::testing {
namespace {

/// Changes a few elements of every tensor and compares the loss's slope with the gradient.
void check_slopes(const Config& config) {
  on_ranks(1, [&](chorus::Communicator& world) {
    Trainer<double> trainer(world, config);
    trainer.gradients();
    int checked = 0;
    Tensors gradients;
    collect(trainer, true, gradients);
    for (const auto& s : trainer.store().segments()) {
      for (const Param& p : s->params) {
        for (std::size_t pick = 0; pick < 5; ++pick) {
          const std::size_t i = pick * 7919 % p.count();
          double& x = s->own_values[p.offset + i];
          const double old = x;
          const double step = 1e-5;
          const auto loss_at = [&](double value) {
            x = value;
            const StepResult r = trainer.gradients();
            return r.loss + r.balance_loss;
          };
          const double slope = (loss_at(old + step) - loss_at(old - step)) / (2 * step);
          x = old;
          const double expected = gradients[p.name][i];
          EXPECT_NEAR(slope, expected, 1e-6 * std::max(std::abs(expected), 1e-2))
              << p.name << "[" << i << "]";
          ++checked;
        }
      }
    }
    EXPECT_GT(checked, 50);
  });
}

Config tiny() {
  Config config = small(1);
  config.model = {.vocab = 16, .context = 8, .layers = 1, .width = 8, .heads = 2};
  config.training.batch = 2;
  return config;
}

TEST(Gradients, EqualTheSlopesOfTheLossWithTiedMatrices) {
  Config config = tiny();
  config.model.tied = true;
  check_slopes(config);
}

TEST(Gradients, EqualTheSlopesOfTheLossWithAnOutputMatrix) {
  Config config = tiny();
  config.model.tied = false;
  config.model.context = 70;  // more than one tile of attention
  config.training.batch = 1;
  check_slopes(config);
}

TEST(Gradients, EqualTheSlopesOfTheLossThroughTwoExpertsPerToken) {
  Config config = tiny();
  config.model.experts = 4;
  config.model.top_k = 2;
  check_slopes(config);
}

TEST(Gradients, EqualTheSlopesOfTheLossThroughOneExpertWithLimitedRoom) {
  Config config = tiny();
  config.model.experts = 3;
  config.model.top_k = 1;
  config.model.capacity = 1.0;
  check_slopes(config);
}

TEST(Gradients, EqualTheSlopesOfTheLossUnderRecomputation) {
  Config config = tiny();
  for (const Recompute recompute : {Recompute::selective, Recompute::full}) {
    config.layout.recompute = recompute;
    check_slopes(config);
  }
}

}  // namespace
}  // namespace trainer::testing
