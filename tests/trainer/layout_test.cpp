// Every layout trains the same model: bit for bit where the arithmetic is the same, else to the
// rounding of float32.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

#include "world.hpp"

namespace trainer::testing {
namespace {

constexpr int kSteps = 6;

void expect_same_bits(const Outcome& run, const Outcome& reference) {
  EXPECT_EQ(run.losses, reference.losses);
  // The norm is a sum in float64 over shards: its last bits depend on how many there are.
  for (std::size_t i = 0; i < run.norms.size(); ++i) {
    EXPECT_NEAR(run.norms[i], reference.norms[i], 1e-12 * reference.norms[i]);
  }
  for (const auto& [name, values] : reference.gradients) {
    EXPECT_TRUE(run.gradients.at(name) == values) << "the gradient of " << name;
  }
  for (const auto& [name, values] : reference.values) {
    EXPECT_TRUE(run.values.at(name) == values) << name;
  }
}

void expect_close(const Outcome& run, const Outcome& reference) {
  ASSERT_EQ(run.losses.size(), reference.losses.size());
  EXPECT_NEAR(run.losses[0], reference.losses[0], 2e-6 * reference.losses[0]);
  EXPECT_NEAR(run.norms[0], reference.norms[0], 2e-6 * reference.norms[0]);
  const auto [gap, tensor] = distance(run.gradients, reference.gradients);
  EXPECT_LT(gap, 1e-5) << tensor;
  for (std::size_t i = 0; i < run.losses.size(); ++i) {
    EXPECT_NEAR(run.losses[i], reference.losses[i], 1e-4) << "step " << i;
  }
  EXPECT_NEAR(run.held_out, reference.held_out, 1e-4);
}

/// The same sequences on one rank.
Config alone(Config config) {
  Layout layout;
  layout.micro_batches = config.layout.dp * config.layout.micro_batches;
  config.layout = layout;
  return config;
}

TEST(Layouts, ReplicasEqualAccumulationBitForBit) {
  for (const int dp : {2, 3, 4}) {
    Config config = small();
    config.layout.dp = dp;
    expect_same_bits(train(config, kSteps), train(alone(config), kSteps));
  }
}

TEST(Layouts, ShardedOptimizersEqualReplicasBitForBit) {
  Config config = small();
  config.layout.dp = 4;
  const Outcome reference = train(config, kSteps);
  for (const int zero : {1, 2, 3}) {
    SCOPED_TRACE(zero);
    config.layout.zero = zero;
    expect_same_bits(train(config, kSteps), reference);
  }
}

TEST(Layouts, OverlapRecomputationAndBucketsChangeNoBit) {
  Config config = small(3);
  config.layout.dp = 2;
  config.layout.micro_batches = 2;
  for (const int zero : {0, 1, 3}) {
    config.layout.zero = zero;
    const Outcome reference = train(config, kSteps);
    Config other = config;
    other.layout.overlap = false;
    expect_same_bits(train(other, kSteps), reference);
    other.layout.overlap = true;
    other.layout.bucket_bytes = 1;
    expect_same_bits(train(other, kSteps), reference);
    for (const Recompute recompute : {Recompute::selective, Recompute::full}) {
      other.layout.recompute = recompute;
      expect_same_bits(train(other, kSteps), reference);
    }
  }
}

// With one layer both buffers are of the same segment, and three micro-batches add up in order.
TEST(Layouts, BuffersOfShardedGradientsChangeNoBit) {
  for (const int layers : {1, 2}) {
    for (const int zero : {2, 3}) {
      SCOPED_TRACE(::testing::Message() << layers << " layers, ZeRO-" << zero);
      Config config = small(layers);
      config.layout = {.dp = 2, .zero = zero, .micro_batches = 3};
      const Outcome reference = train(config, kSteps);
      config.layout.overlap = false;
      expect_same_bits(train(config, kSteps), reference);
    }
  }
}

TEST(Layouts, TensorParallelRanksEqualOneRankToRounding) {
  for (const bool tied : {false, true}) {
    for (const int tp : {2, 4}) {
      for (const bool sequence : {false, true}) {
        SCOPED_TRACE(::testing::Message() << tp << " ranks, sequence parallel " << sequence);
        Config config = small();
        config.model.tied = tied;
        config.layout.tp = tp;
        config.layout.sequence_parallel = sequence;
        expect_close(train(config, kSteps), train(alone(config), kSteps));
      }
    }
  }
}

TEST(Layouts, PipelinesEqualOneRankBitForBitUnderEverySchedule) {
  for (const Pipeline pipeline :
       {Pipeline::gpipe, Pipeline::one_f_one_b, Pipeline::interleaved, Pipeline::zero_bubble}) {
    for (const int pp : {2, 4}) {
      SCOPED_TRACE(::testing::Message() << name_of(pipeline) << ", " << pp << " ranks");
      Config config = small(8);
      config.model.width = 16;
      config.layout.pp = pp;
      config.layout.micro_batches = 8;
      config.layout.pipeline = pipeline;
      config.layout.virtual_stages = pipeline == Pipeline::interleaved ? 2 : 1;
      const Outcome run = train(config, kSteps);
      expect_same_bits(run, train(alone(config), kSteps));
    }
  }
}

TEST(Layouts, TiedMatricesAtBothEndsOfAPipelineStayEqual) {
  Config config = small(2);
  config.model.tied = true;
  config.layout.pp = 2;
  config.layout.micro_batches = 3;
  for (const int zero : {0, 1, 2, 3}) {
    config.layout.zero = zero;
    expect_close(train(config, kSteps), train(alone(config), kSteps));
  }
}

TEST(Layouts, ExpertsOnSeveralRanksEqualExpertsOnOne) {
  for (const double capacity : {0.0, 1.0}) {
    for (const int ep : {2, 4}) {
      SCOPED_TRACE(::testing::Message() << ep << " ranks, capacity " << capacity);
      Config config = small();
      config.model.experts = 4;
      config.model.capacity = capacity;
      config.layout.dp = 4;
      config.layout.ep = ep;
      expect_close(train(config, kSteps), train(alone(config), kSteps));
    }
  }
}

// Parts of the rows travel under the work on others: the same rows, the same bits.
TEST(Layouts, ExpertsThatWorkInPartsChangeNoBit) {
  for (const int ep : {1, 2}) {
    Config config = small();
    config.model.experts = 8;
    config.layout.dp = 2;
    config.layout.ep = ep;
    config.layout.micro_batches = 2;
    const Outcome whole = train(config, kSteps);
    for (const int chunks : {2, 3, 4, 100}) {
      SCOPED_TRACE(::testing::Message() << ep << " ranks, " << chunks << " parts");
      config.layout.expert_chunks = chunks;
      const Outcome run = train(config, kSteps);
      expect_same_bits(run, whole);
      const Traffic& one = whole.log.at(Axis::expert, Kind::all_to_all_v);
      const Traffic& parts = run.log.at(Axis::expert, Kind::all_to_all_v);
      EXPECT_EQ(parts.sent_bytes, one.sent_bytes);
      EXPECT_EQ(parts.calls, one.calls * static_cast<unsigned>(std::min(chunks, 8 / ep)));
    }
  }
}

struct Product {
  const char* name;
  Layout layout;
  int experts;
};

class Products : public ::testing::TestWithParam<Product> {};

TEST_P(Products, EqualOneRankToRounding) {
  Config config = small(4);
  config.layout = GetParam().layout;
  config.model.experts = GetParam().experts;
  expect_close(train(config, kSteps), train(alone(config), kSteps));
}

INSTANTIATE_TEST_SUITE_P(
    Of, Products,
    ::testing::Values(
        Product{"dp2_tp2", {.dp = 2, .tp = 2}, 0},
        Product{"dp2_tp2_sp_zero3", {.dp = 2, .tp = 2, .zero = 3, .sequence_parallel = true}, 0},
        Product{"tp2_pp2_sp", {.tp = 2, .pp = 2, .sequence_parallel = true, .micro_batches = 4}, 0},
        Product{"dp2_pp2_zero1", {.dp = 2, .pp = 2, .zero = 1, .micro_batches = 2}, 0},
        Product{"dp2_tp2_pp2", {.dp = 2, .tp = 2, .pp = 2, .micro_batches = 2}, 0},
        Product{"dp2_tp2_pp2_everything",
                {.dp = 2,
                 .tp = 2,
                 .pp = 2,
                 .zero = 2,
                 .sequence_parallel = true,
                 .micro_batches = 4,
                 .virtual_stages = 2,
                 .pipeline = Pipeline::interleaved,
                 .recompute = Recompute::selective},
                0},
        Product{"zero_bubble_zero3",
                {.dp = 2,
                 .pp = 2,
                 .zero = 3,
                 .micro_batches = 4,
                 .pipeline = Pipeline::zero_bubble,
                 .recompute = Recompute::full},
                0},
        Product{"zero_bubble_tp2_sp",
                {.tp = 2,
                 .pp = 2,
                 .sequence_parallel = true,
                 .micro_batches = 4,
                 .pipeline = Pipeline::zero_bubble},
                0},
        Product{"experts_ep2_tp2", {.dp = 2, .tp = 2, .ep = 2}, 4},
        Product{"experts_ep2_tp2_pp2_sp_zero1",
                {.dp = 2,
                 .tp = 2,
                 .pp = 2,
                 .ep = 2,
                 .zero = 1,
                 .sequence_parallel = true,
                 .micro_batches = 2},
                4},
        Product{"experts_ep2_of_dp4_zero3", {.dp = 4, .ep = 2, .zero = 3}, 4},
        Product{"experts_zero_bubble",
                {.dp = 2, .pp = 2, .ep = 2, .micro_batches = 4, .pipeline = Pipeline::zero_bubble},
                4}),
    [](const auto& product) { return product.param.name; });

TEST(Layouts, LearnTheSyntheticSource) {
  Config config = small();
  config.layout.dp = 2;
  config.training.batch = 8;
  config.training.steps = 60;
  const Outcome run = train(config, 60);
  EXPECT_GT(run.losses.front(), 4.0);  // ln 64 = 4.16
  EXPECT_LT(run.losses.back(), 2.6);
  EXPECT_LT(run.held_out, 2.8);
}

// While the gradients of one layer travel, those of the next are added up in the other buffer.
TEST(Zero2, GoesOnWhileAReductionIsInFlight) {
  for (const int zero : {2, 3}) {
    Config config = small(3);
    config.layout = {.dp = 2, .zero = zero, .micro_batches = 2};
    std::atomic<bool> went_on = false;
    on_ranks(2, [&](chorus::Communicator& world) {
      Trainer<float> trainer(world, config);
      Store<float>& store = trainer.store();
      std::vector<Segment<float>*> layers;
      for (const auto& s : store.segments()) {
        if (!s->end) layers.push_back(s.get());
      }
      ASSERT_EQ(layers.size(), 3U);
      store.acquire_gradients(*layers[2]);
      // Rank 0's reduction cannot be complete before rank 1 has begun its own.
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      while (world.rank() == 1 && !went_on && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      EXPECT_TRUE(world.rank() == 0 || went_on) << "ZeRO-" << zero;
      store.release_gradients(*layers[2], false);
      store.acquire_gradients(*layers[1]);
      EXPECT_NE(layers[1]->gradients, nullptr);
      went_on = true;
      store.release_gradients(*layers[1], false);
      store.acquire_gradients(*layers[0]);
      store.release_gradients(*layers[0], false);
      store.finish_gradients();
    });
  }
}

}  // namespace
}  // namespace trainer::testing
