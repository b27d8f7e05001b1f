// Replicas with unequal shares of the batch train as equal ones do; and a loss scale that is a
// power of two changes no bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "chorus/error.hpp"
#include "world.hpp"

namespace trainer::testing {
namespace {

constexpr int kSteps = 6;

void expect_equal(const Outcome& run, const Outcome& reference) {
  const auto [gap, tensor] = distance(run.gradients, reference.gradients);
  EXPECT_LT(gap, 1e-5) << tensor;
  ASSERT_EQ(run.losses.size(), reference.losses.size());
  EXPECT_NEAR(run.losses[0], reference.losses[0], 2e-6 * reference.losses[0]);
  for (std::size_t i = 0; i < run.losses.size(); ++i) {
    EXPECT_NEAR(run.losses[i], reference.losses[i], 1e-4) << "step " << i;
  }
}

TEST(Shares, OfABatchTrainAsEqualOnesDo) {
  Config config = small();
  config.layout = {.dp = 2, .micro_batches = 2};
  config.training.batch = 4;
  const Outcome even = train(config, kSteps);
  for (const int zero : {0, 1, 2, 3}) {
    SCOPED_TRACE(zero);
    config.layout.zero = zero;
    config.layout.shares = {7, 1};
    expect_equal(train(config, kSteps), even);
  }
}

TEST(Shares, GoWithSlicesStagesHalvesAndUnequalLayers) {
  Config config = small(4);
  config.layout = {.dp = 2, .micro_batches = 2};
  config.training.batch = 4;
  const Outcome even = train(config, kSteps);
  config.layout = {.dp = 2,
                   .tp = 2,
                   .pp = 2,
                   .sequence_parallel = true,
                   .micro_batches = 2,
                   .partition = {3, 1},
                   .shares = {2, 6}};
  expect_equal(train(config, kSteps), even);
  config.layout.pipeline = Pipeline::zero_bubble;
  config.layout.halves = true;
  expect_equal(train(config, kSteps), even);
}

// The balance loss is of each micro-batch's own: in other micro-batches it is another one.
TEST(Shares, OfAModelWithExpertsTrainAsEqualOnesDo) {
  Config config = small();
  config.model.experts = 4;
  config.model.balance_loss = 0;
  config.layout = {.dp = 2};
  const Outcome even = train(config, kSteps);
  config.layout.shares = {1, 3};
  expect_equal(train(config, kSteps), even);
}

// Ranks that share experts hold unequal shares: each sends and takes what the others hold.
TEST(Shares, GoWithExpertsSpreadOverReplicas) {
  Config config = small(4);
  config.model.experts = 4;
  config.model.balance_loss = 0;
  config.layout = {.dp = 4, .ep = 2, .micro_batches = 2};
  config.training.batch = 4;
  const Outcome even = train(config, kSteps);
  config.layout.shares = {9, 1, 2, 4};  // more than a replica's even share comes to one rank
  for (const int zero : {0, 1, 2, 3}) {
    SCOPED_TRACE(zero);
    config.layout.zero = zero;
    expect_equal(train(config, kSteps), even);
  }
  config.layout = {.dp = 2,
                   .tp = 2,
                   .pp = 2,
                   .ep = 2,
                   .expert_chunks = 2,
                   .halves = true,
                   .sequence_parallel = true,
                   .micro_batches = 2,
                   .pipeline = Pipeline::zero_bubble,
                   .recompute = Recompute::full,
                   .shares = {14, 2}};
  expect_equal(train(config, kSteps), even);
}

// What each replica adds is weighted by what it holds: were they to count alike, it would show.
TEST(Shares, AreWeightedByWhatTheyHold) {
  Config config = small();
  config.layout = {.dp = 2};
  const Outcome even = train(config, 1);
  config.layout.shares = {3, 1};
  std::vector<Tensors> own(2);
  on_ranks(2, [&](chorus::Communicator& world) {
    Trainer<float> trainer(world, config);
    trainer.groups().data = Group();
    trainer.gradients();
    collect(trainer, true, own[static_cast<std::size_t>(world.rank())]);
  });
  const auto sum = [&](double first, double second) {
    Tensors all = own[0];
    for (auto& [name, values] : all) {
      const auto& theirs = own[1].at(name);
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = first * values[i] + second * theirs[i];
      }
    }
    return distance(all, even.gradients).first;
  };
  EXPECT_LT(sum(1, 1), 1e-5);
  EXPECT_GT(sum(4.0 / 3 / 2, 4.0 / 1 / 2), 1e-2);
}

TEST(Shares, SendTheFormulasBytes) {
  Config config = small(4);
  config.layout = {.dp = 2, .tp = 2, .pp = 2, .zero = 1, .micro_batches = 2, .shares = {5, 1}};
  expect_predicted(config);
  config.model.experts = 4;
  config.layout = {.dp = 4, .ep = 2, .zero = 2, .micro_batches = 2, .shares = {5, 1, 1, 3}};
  expect_predicted(config);
}

std::string refused(const Config& config) {
  try {
    check(config, config.layout.world_size());
  } catch (const chorus::InputError& error) {
    return error.what();
  }
  return "";
}

TEST(Shares, ThatDoNotFitAreRefusedInOneSentence) {
  Config config = small();
  config.layout = {.dp = 2, .shares = {3, 1, 1}};
  EXPECT_EQ(refused(config),
            "--batch-shares 3,1,1 must give each of the 2 replicas (--dp) one sequence or more per "
            "micro-batch");
  config.layout.shares = {4, 0};
  EXPECT_NE(refused(config), "");
  config.layout.shares = {3, 1};
  EXPECT_EQ(refused(config), "");
  config.training.average = Average::ring;
  EXPECT_NE(refused(config), "");
  config.training.average = Average::gradients;
  config.layout.tp = 2;
  config.layout.halves = true;
  EXPECT_EQ(refused(config),
            "--batch-shares 3 has no two halves; with --halves use --batch-shares 4");
  config.layout = {.dp = 2, .ep = 2, .shares = {3, 1}};
  config.model.experts = 4;
  EXPECT_EQ(refused(config), "");
}

TEST(LossScale, ThatIsAPowerOfTwoChangesNoBit) {
  Config config = small();
  config.model.experts = 4;
  config.layout = {.dp = 2};
  const Outcome plain = train(config, kSteps);
  config.training.loss_scale = 1024;
  const Outcome scaled = train(config, kSteps);
  EXPECT_EQ(scaled.losses, plain.losses);
  EXPECT_EQ(scaled.norms, plain.norms);
  EXPECT_EQ(scaled.values, plain.values);
}

// Too large a scale makes infinities: those steps change no value on any rank, and it is halved
// until gradients are numbers again.
TEST(LossScale, IsHalvedUntilNothingOverflows) {
  for (const int zero : {0, 1, 3}) {
    Config config = small();
    config.layout = {.dp = 2, .zero = zero};
    config.training.steps = 24;
    config.training.loss_scale = std::ldexp(1.0, 136);
    std::vector<double> losses(2);
    std::vector<int> skipped(2);
    on_ranks(2, [&](chorus::Communicator& world) {
      const auto r = static_cast<std::size_t>(world.rank());
      Trainer<float> trainer(world, config);
      const double first = trainer.evaluate(2);
      double before = first;
      for (int i = 0; i < 24; ++i) {
        const StepResult result = trainer.step();
        const double after = trainer.evaluate(2);
        skipped[r] += result.skipped ? 1 : 0;
        EXPECT_EQ(result.skipped, after == before) << "step " << i;
        before = after;
      }
      losses[r] = before / first;
    });
    EXPECT_GE(skipped[0], 3);
    EXPECT_LE(skipped[0], 20);
    EXPECT_EQ(skipped[0], skipped[1]);
    EXPECT_LT(losses[0], 0.98);
    EXPECT_EQ(losses[0], losses[1]);
  }
}

TEST(LossScale, ThatRoundsOrCannotTravelIsRefused) {
  Config config = small();
  for (const double scale : {3.0, 0.5, -2.0, double{NAN}}) {
    config.training.loss_scale = scale;
    EXPECT_NE(refused(config), "") << scale;
  }
  config.training.loss_scale = 2;
  EXPECT_EQ(refused(config), "");
  config.layout.dp = 2;
  config.training.compression = Compression::qsgd;
  EXPECT_NE(refused(config), "");
}

}  // namespace
}  // namespace trainer::testing
