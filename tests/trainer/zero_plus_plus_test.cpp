// ZeRO++: what is kept in the node changes no bit and crosses nodes once a step; what travels in 8
// bits is what the formulas say, and trains to the same loss.
#include <gtest/gtest.h>

#include <cmath>

#include "chorus/error.hpp"
#include "model/random.hpp"
#include "world.hpp"

namespace trainer::testing {
namespace {

Config sharded(int dp = 4) {
  Config config = small(3);
  config.layout = {.dp = dp, .zero = 3, .micro_batches = 2};
  return config;
}

TEST(SecondaryPartition, ChangesNoBit) {
  const Outcome reference = train(sharded(), 4);
  for (const int secondary : {1, 2, 4}) {
    for (const bool overlap : {true, false}) {
      Config config = sharded();
      config.layout.secondary = secondary;
      config.layout.overlap = overlap;
      const Outcome run = train(config, 4);
      EXPECT_EQ(run.losses, reference.losses) << secondary;
      EXPECT_EQ(run.gradients, reference.gradients) << secondary;
      EXPECT_EQ(run.values, reference.values) << secondary;
      EXPECT_EQ(run.held_out, reference.held_out) << secondary;
    }
  }
}

// Only the first use of a step's values crosses nodes: no gathering does in the backward pass.
TEST(SecondaryPartition, GathersAcrossNodesOncePerStep) {
  Config config = sharded();
  config.layout.secondary = 2;
  on_ranks(4, [&](chorus::Communicator& world) {
    Trainer<float> trainer(world, config);
    trainer.step();
    trainer.log().clear();
    trainer.step();
    trainer.groups().flights.wait_all();
    const auto segments = trainer.store().segments().size();
    EXPECT_EQ(trainer.log().at(Axis::data, Kind::all_gather).calls, segments);
    // Of three layers a pass finds two where the one before left them, so the three passes after
    // the first forward one gather one each; the ends keep theirs.
    EXPECT_EQ(trainer.log().at(Axis::node, Kind::all_gather).calls, 3U);
  });
}

TEST(ZeroPlusPlus, SendsTheFormulasBytes) {
  struct Variant {
    int zero;
    bool weights, gradients;
    int secondary;
  };
  for (const Variant v :
       {Variant{3, true, false, 0}, Variant{3, false, true, 0}, Variant{2, false, true, 0},
        Variant{3, false, false, 2}, Variant{3, true, true, 2}, Variant{3, true, true, 1},
        Variant{3, true, true, 4}}) {
    SCOPED_TRACE(::testing::Message()
                 << "ZeRO-" << v.zero << v.weights << v.gradients << v.secondary);
    Config config = sharded();
    config.layout.zero = v.zero;
    config.layout.quantize_weights = v.weights;
    config.layout.quantize_gradients = v.gradients;
    config.layout.secondary = v.secondary;
    expect_predicted(config);
  }
}

TEST(ZeroPlusPlus, SendsAQuarterOfZero3AndLessAcrossNodes) {
  Config config;
  config.model = preset("19M");
  config.layout = {.dp = 16, .zero = 3};
  const double plain = static_cast<double>(predicted_volume(config, 0, 4)[0]);
  config.layout.quantize_weights = config.layout.quantize_gradients = true;
  const double quantized = static_cast<double>(predicted_volume(config, 0, 4)[0]);
  EXPECT_NEAR(quantized / plain, (1 + 4.0 / 512) / 4, 0.001);
  // With nodes of 8, values cross once and gradients as one of 2 nodes' sums: of 3 · P · 15/16
  // floats (less what the backward pass finds), P · 15/16 bytes (to all others, most of them
  // across) and P/16 bytes.
  config.layout.secondary = 8;
  const Volume nodes = predicted_volume(config, 0, 4);
  const double across = static_cast<double>(nodes[static_cast<std::size_t>(Axis::data)] +
                                            nodes[static_cast<std::size_t>(Axis::across)]);
  const double thrice = 3 * static_cast<double>(parameters(config.model)) * sizeof(float) * 15 / 16;
  EXPECT_LT(across / thrice, 0.12);
}

TEST(ZeroPlusPlus, TrainsToTheLossOfZero3) {
  Config config = small();
  config.layout = {.dp = 4, .zero = 3};
  config.training.batch = 4;
  config.training.steps = 200;
  const auto last = [&] {
    const Outcome run = train(config, config.training.steps);
    double mean = 0;
    for (std::size_t i = run.losses.size() - 10; i < run.losses.size(); ++i) mean += run.losses[i];
    return mean / 10;
  };
  const double plain = last();
  EXPECT_LT(plain, 1.9);
  config.layout.quantize_weights = config.layout.quantize_gradients = true;
  config.layout.secondary = 2;
  const double quantized = last();
  std::printf("ZeRO-3 %.4f, ZeRO++ %.4f\n", plain, quantized);
  EXPECT_NEAR(quantized, plain, 0.01 * plain);
}

TEST(Nearest8, IsWithinHalfAStepOfItsBlock) {
  std::vector<float> x(1300), y(1300);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(random_normal(7, 1, i));
  const chorus::compress::Nearest8 how;
  std::vector<std::byte> payload(how.bytes(x.size()));
  EXPECT_EQ(payload.size(), 1300U + 3 * 4);
  how.encode(x, 0, payload);
  how.add(payload, 1.0F, y);
  for (std::size_t block = 0; block < x.size(); block += 512) {
    float largest = 0;
    const std::size_t end = std::min(x.size(), block + 512);
    for (std::size_t i = block; i < end; ++i) largest = std::max(largest, std::abs(x[i]));
    for (std::size_t i = block; i < end; ++i) EXPECT_NEAR(y[i], x[i], largest / 254 * 1.001F);
  }
}

TEST(ZeroPlusPlus, IsRefusedWhereItMeansNothing) {
  Config config = small();
  config.layout = {.dp = 2, .zero = 2, .secondary = 2};
  EXPECT_THROW(check(config, 2), chorus::InputError);
  config.layout = {.dp = 2, .zero = 2, .quantize_weights = true};
  EXPECT_THROW(check(config, 2), chorus::InputError);
  config.layout = {.dp = 2, .zero = 1, .quantize_gradients = true};
  EXPECT_THROW(check(config, 2), chorus::InputError);
  config.layout = {.dp = 4, .zero = 3, .secondary = 3};
  EXPECT_THROW(check(config, 4), chorus::InputError);
}

}  // namespace
}  // namespace trainer::testing
